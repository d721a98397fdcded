# The headers are those of the installed libspdlog-dev, whose version scripts/setup answers for.
set(PACKAGE_VERSION 1.10.0)
set(PACKAGE_VERSION_COMPATIBLE TRUE)
