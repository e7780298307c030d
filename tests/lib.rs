//! A package needs a target that is no test; the tests are all in `whole/`.
