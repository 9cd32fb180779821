// SPDX-License-Identifier: Apache-2.0
// What foci throws, and how it says what is not an error but should not be missed.
// Every message is one line: what it got, what it needs.
#pragma once

#include <foci/export.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace foci {

/// Anything foci throws on purpose.
class FOCI_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller's mistake: a shape, an option or a value that does not fit.
class FOCI_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A fair request that this build or backend cannot serve; names the nearest thing it can.
class FOCI_API Unsupported : public Error {
 public:
  using Error::Error;
};

/// A file that cannot be read, is not what it claims to be, or cannot be written.
class FOCI_API FileError : public Error {
 public:
  using Error::Error;
};

/// The arithmetic gave up: a covariance that no ridge could factor.
class FOCI_API NumericalError : public Error {
 public:
  using Error::Error;
};

/// The GPU or its driver refused: a launch, a copy, memory. Names the call that failed.
class FOCI_API DeviceError : public Error {
 public:
  using Error::Error;
};

/// Receives warnings. The default prints `foci: warning: ...` to standard error, each text once.
using WarningHandler = void (*)(std::string_view message);

/// Replaces the handler for the whole process and returns the one before; nullptr restores the
/// default.
FOCI_API WarningHandler set_warning_handler(WarningHandler handler);

/// Hands `message` to the handler. Safe from any thread.
FOCI_API void warn(std::string_view message);

}  // namespace foci
