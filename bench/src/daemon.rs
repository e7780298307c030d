//! Measures the daemon:
//!
//! - a run, compared with the same run in-process;
//! - answers per second, compared with a bare HTTP responder;
//! - 1,000 callers that wait for one run;
//! - idle memory;
//! - the growth of memory and descriptors over 10,000 runs.

mod daemon_fixture;
pub(crate) mod exec;
mod http_peer;

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use proctor_core::api::{RunSubmission, RunWithEvents, SubmittedRun};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::samples::{LimitChecks, Sample, heading, millis, ratio, row};
use crate::{host_state, program};
use daemon_fixture::{DaemonFixture, DaemonProcess, InProcessEngine};
pub(crate) use http_peer::run_responder;
use http_peer::{BareResponder, BenchConnection};

/// Maximum overhead of a run through the daemon over the same run in-process, in milliseconds.
const MAX_OVERHEAD_MS: f64 = 5.0;
/// Minimum number of answers per second, relative to a bare responder.
const MIN_ANSWER_RATE: f64 = 0.3;
/// Maximum time from the end of a run until the last of its callers gets the answer, in milliseconds.
const MAX_NOTIFY_MS: f64 = 50.0;
/// Maximum memory of an idle daemon, in MiB.
const MAX_IDLE_MIB: f64 = 30.0;
/// Time without requests before idle memory is measured: the daemon returns memory after some idle seconds.
const IDLE_TIME: Duration = Duration::from_secs(8);
/// Maximum apparent growth of the daemon's memory over all runs, in MiB; less than the normal variation of its
/// heap.
const MAX_GROWTH_MIB: f64 = 1.0;

/// Number of rounds before the measurement starts.
const WARM_UP: usize = 10;
/// Number of callers that wait for one run.
const WAITING_CALLERS: usize = 1_000;
/// Time for which answers are counted.
const COUNT_DURATION: Duration = Duration::from_secs(1);
/// Number of concurrent connections.
const CONNECTIONS: usize = 4;
/// Number of counts of answers.
const COUNTS: usize = 7;
/// Number of samples over many runs.
const GROWTH_SAMPLES: usize = 20;

/// Measures, prints, and compares the results with the limits. RUNS is the number of runs of each kind (100), MANY
/// the number of runs of one daemon at the end (10,000; 0 skips that part).
///
/// # Errors
/// A program cannot be run.
pub(crate) fn measure(bars: &mut LimitChecks) -> Result<()> {
    let runs: usize = program::setting("RUNS", 100)?;
    let many: usize = program::setting("MANY", 10_000)?;
    let runtime = Runtime::new().context("cannot start the async runtime")?;
    let fixture = DaemonFixture::create()?;
    runtime.block_on(async {
        let daemon = DaemonProcess::start(&fixture).await?;
        measure_idle_memory(&daemon, "before any run", bars).await?;
        measure_overhead(&fixture, &daemon, runs, bars).await?;
        measure_answer_rate(&daemon, bars).await?;
        measure_notification(&daemon, bars).await?;
        measure_idle_memory(&daemon, "after those runs", bars).await?;
        if many > 0 {
            measure_growth(&daemon, many, bars).await?;
        }
        Ok(())
    })
}

/// Measures a run of one `true`, alternating between in-process and the daemon. Both engines stay open.
async fn measure_overhead(
    fixture: &DaemonFixture,
    daemon: &DaemonProcess,
    runs: usize,
    bars: &mut LimitChecks,
) -> Result<()> {
    let engine = InProcessEngine::open(fixture)?;
    let mut connection = BenchConnection::open(&daemon.socket).await?;
    let (mut in_process, mut through_daemon) = (Sample::default(), Sample::default());
    for round in 0..WARM_UP + runs {
        let took = [engine.run().await?, run_through_daemon(&mut connection, &fixture.submission("quick")?).await?];
        if round >= WARM_UP {
            in_process.push(took[0]);
            through_daemon.push(took[1]);
        }
    }
    println!("{}", heading(&format!("{runs} runs of one `true`, ms")));
    println!("{}", row("in-process", &in_process));
    println!("{}", row("through the daemon", &through_daemon));
    bars.at_most(
        "milliseconds over in-process, medians",
        millis(through_daemon.median()) - millis(in_process.median()),
        MAX_OVERHEAD_MS,
    );
    Ok(())
}

/// Measures the time from the request to the answer that the run passed.
async fn run_through_daemon(connection: &mut BenchConnection, submission: &RunSubmission) -> Result<Duration> {
    let began = Instant::now();
    let submitted: SubmittedRun = connection.post("/v1/runs", submission).await?;
    let ended = wait_for_end(connection, submitted.run.id.as_str()).await?;
    let took = began.elapsed();
    ensure!(ended.run.exit_code == Some(0), "a run did not pass: {}", ended.run.reason);
    Ok(took)
}

async fn wait_for_end(connection: &mut BenchConnection, run: &str) -> Result<RunWithEvents> {
    connection.get(&format!("/v1/runs/{run}?wait=55s")).await
}

/// Measures the answers per second about a finished run, compared with a responder that only sends the same number
/// of bytes.
async fn measure_answer_rate(daemon: &DaemonProcess, bars: &mut LimitChecks) -> Result<()> {
    let mut connection = BenchConnection::open(&daemon.socket).await?;
    let submitted: SubmittedRun = connection.post("/v1/runs", &daemon.fixture.submission("quick")?).await?;
    wait_for_end(&mut connection, submitted.run.id.as_str()).await?;
    let path = format!("/v1/runs/{}", submitted.run.id);
    let bytes = connection.bytes(&path).await?.len();
    let peer = BareResponder::start(&daemon.fixture, bytes).await?;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    for _ in 0..COUNTS {
        bare.push(average_answer_time(&peer.socket, "/").await?);
        ours.push(average_answer_time(&daemon.socket, &path).await?);
    }
    let rate = |sample: &Sample| 1.0 / sample.median().as_secs_f64();
    println!(
        "answers of {bytes} bytes over {CONNECTIONS} connections, {COUNTS} times {COUNT_DURATION:?} in turns, medians:"
    );
    println!("  a bare responder {:>8.0} a second\n  the daemon       {:>8.0} a second", rate(&bare), rate(&ours));
    bars.at_least(
        "answers a second of those of a bare responder",
        ratio(bare.median(), ours.median()),
        MIN_ANSWER_RATE,
    );
    Ok(())
}

/// Returns the average time of an answer if several connections send requests as fast as they can.
async fn average_answer_time(socket: &std::path::Path, path: &str) -> Result<Duration> {
    let mut asking = JoinSet::new();
    let until = Instant::now() + COUNT_DURATION;
    for _ in 0..CONNECTIONS {
        let (mut connection, path) = (BenchConnection::open(socket).await?, path.to_owned());
        asking.spawn(async move {
            let mut count = 0_u32;
            while Instant::now() < until {
                connection.bytes(&path).await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(counted) = asking.join_next().await {
        count += counted.context("the task of a caller failed")??;
    }
    Ok(COUNT_DURATION / count.max(1))
}

/// Measures when each of many callers that wait for one run gets the answer.
async fn measure_notification(daemon: &DaemonProcess, bars: &mut LimitChecks) -> Result<()> {
    let mut connection = BenchConnection::open(&daemon.socket).await?;
    let submitted: SubmittedRun = connection.post("/v1/runs", &daemon.fixture.submission("slow")?).await?;
    let id = submitted.run.id.to_string();
    let mut waiting = JoinSet::new();
    for _ in 0..WAITING_CALLERS {
        let (mut connection, id) = (BenchConnection::open(&daemon.socket).await?, id.clone());
        waiting.spawn(async move {
            let answer = connection.bytes(&format!("/v1/runs/{id}?wait=55s")).await?;
            anyhow::Ok((now(), answer))
        });
    }
    // The time until the run ends is not measured.
    let mut late = Sample::default();
    let mut finished = None;
    while let Some(answer) = waiting.join_next().await {
        let (at, bytes) = answer.context("the task of a caller failed")??;
        let ended = match finished {
            Some(ended) => ended,
            None => *finished.insert(end_time(&bytes)?),
        };
        late.push(at.duration_since(ended).unwrap_or_default());
    }
    println!("{}", heading(&format!("{WAITING_CALLERS} callers waiting for a run to end, ms")));
    println!("{}", row("after the last event", &late));
    bars.at_most("milliseconds until the last caller had its response", millis(late.max()), MAX_NOTIFY_MS);
    Ok(())
}

/// Returns the end time of a run from its own record.
fn end_time(answer: &[u8]) -> Result<SystemTime> {
    let answer: RunWithEvents = serde_json::from_slice(answer).context("a response is not a run")?;
    let at = answer.run.finished_at.with_context(|| format!("the run has not ended: {}", answer.run.reason))?;
    humantime::parse_rfc3339(&at).with_context(|| format!("`{at}` is not a timestamp"))
}

#[expect(clippy::disallowed_methods, reason = "the time is compared with a timestamp of another process")]
fn now() -> SystemTime {
    SystemTime::now()
}

async fn measure_idle_memory(daemon: &DaemonProcess, when: &str, bars: &mut LimitChecks) -> Result<()> {
    // Idle memory is measured after a fixed time, because no event marks the end of that time.
    tokio::time::sleep(IDLE_TIME).await;
    let resident = mib(host_state::resident(daemon.pid())?);
    bars.at_most(&format!("MiB resident, idle, {when}"), resident, MAX_IDLE_MIB);
    Ok(())
}

/// Measures the growth of the daemon's descriptors and memory over many runs, by least squares. Ignores the first
/// tenth, in which caches fill up.
async fn measure_growth(daemon: &DaemonProcess, many: usize, bars: &mut LimitChecks) -> Result<()> {
    let mut connection = BenchConnection::open(&daemon.socket).await?;
    let submission = daemon.fixture.submission("quick")?;
    let mut seen: Vec<(f64, f64, f64)> = Vec::new();
    for part in 1..=GROWTH_SAMPLES {
        for _ in 0..many / GROWTH_SAMPLES {
            run_through_daemon(&mut connection, &submission).await?;
        }
        let pid = daemon.pid();
        let (descriptors, resident) = (host_state::open_descriptors(pid)?, mib(host_state::resident(pid)?));
        println!("  after {:>6} runs: {descriptors} descriptors, {resident:.1} MiB", part * (many / GROWTH_SAMPLES));
        seen.push(((part * (many / GROWTH_SAMPLES)) as f64, descriptors as f64, resident));
    }
    let steady = &seen[GROWTH_SAMPLES / 10..];
    let grown = |of: fn(&(f64, f64, f64)) -> f64| slope_of(steady.iter().map(|seen| (seen.0, of(seen)))) * many as f64;
    bars.at_most(&format!("descriptors more over {many} runs"), grown(|seen| seen.1).round(), 0.0);
    bars.at_most(&format!("MiB more over {many} runs"), grown(|seen| seen.2), MAX_GROWTH_MIB);
    Ok(())
}

/// Returns the slope of the least-squares line through these points.
fn slope_of(points: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let count = points.clone().count() as f64;
    let mean = |of: fn((f64, f64)) -> f64| points.clone().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let above: f64 = points.clone().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let below: f64 = points.map(|point| (point.0 - x).powi(2)).sum();
    above / below
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_of_line() {
        let points = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)];
        assert!((slope_of(points.into_iter()) - 2.0).abs() < 1e-9);
        assert!(slope_of([(0.0, 7.0), (5.0, 7.0)].into_iter()).abs() < 1e-9);
    }
}
