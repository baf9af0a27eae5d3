# R's own projection pursuit regression (stats::ppr), told n.
folder <- commandArgs(trailingOnly = TRUE)[1]
table <- function(name, columns) {
  path <- file.path(folder, name)
  matrix(readBin(path, "double", file.size(path) / 8), ncol = columns, byrow = TRUE)
}
sizes <- scan(file.path(folder, "task.txt"), what = "", quiet = TRUE)
d <- as.integer(sizes[1]); n <- as.integer(sizes[2]); smoother <- sizes[3]; level <- as.integer(sizes[4])
X <- table("X.bin", d); y <- table("Y.bin", as.integer(sizes[5])); T <- table("T.bin", d)
colnames(X) <- colnames(T) <- paste0("x", seq_len(d))
start <- proc.time()
fit <- switch(smoother,
  supsmu = ppr(X, y, nterms = n, max.terms = n, optlevel = level),
  spline = ppr(X, y, nterms = n, max.terms = n, optlevel = level, sm.method = "spline", df = 12),
  gcv = ppr(X, y, nterms = n, max.terms = n, optlevel = level, sm.method = "gcvspline"))
writeBin(as.double(fit$alpha), file.path(folder, "directions.bin"))
writeBin(as.double(t(predict(fit, T))), file.path(folder, "values.bin"))
taken <- proc.time() - start
writeBin(as.double(taken[1] + taken[2]), file.path(folder, "seconds.bin"))
