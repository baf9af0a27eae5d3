"""The paper as written: every algorithm, lemma and reduction of "Provably Extracting the Features from a
General Superposition", in its letters. See docs/theory.md for the map from statement to function to
test."""
