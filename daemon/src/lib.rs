//! The daemon. Callers send requests over a socket, runs wait in a queue, and their results are stored. The rules for
//! passing and failing are in `proctor-core`, and `proctor-runner` executes the runs.
//!
//! Data flows in one direction. A transport ([`http`], [`mcp`]) turns bytes into a call of [`service::Service`],
//! which sends it to the owner of all runs. The owner starts runs, writes their events to logs ([`history`]), and
//! folds them into the state that callers see. [`lifecycle`] starts and stops all of this.

pub mod caller;
mod caller_limits;
pub mod client;
pub mod evidence;
mod exec_queue;
pub mod helpers;
pub mod history;
pub mod http;
pub mod lifecycle;
pub mod log;
pub mod mcp;
pub mod metrics;
mod output_names;
pub mod queue;
pub mod runs;
pub mod service;
pub mod settings;
pub mod telemetry;
mod throttle;
