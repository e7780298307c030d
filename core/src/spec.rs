//! The spec as a person wrote it, and the way from its bytes to a plan.
