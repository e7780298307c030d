//! The daemon: callers ask over a socket, runs wait for their turn, and what they came to is
//! remembered. It has no rule about passing or failing (`proctor-core`), and it runs nothing by
//! itself (`proctor-runner`).
//!
//! One way: a transport ([`http`], [`mcp`]) turns bytes into a call of [`service::Service`], which
//! asks the one owner of all runs; that one starts them, writes their events to their logs
//! ([`history`]), and folds them into what callers see. [`life`] starts and ends all of it.

pub mod caller;
pub mod client;
pub mod evidence;
mod execs;
pub mod history;
pub mod http;
pub mod installation;
pub mod life;
pub mod log;
pub mod mcp;
pub mod metrics;
mod outputs;
pub mod queue;
pub mod runs;
pub mod service;
pub mod settings;
mod shares;
pub mod telemetry;
mod throttle;
