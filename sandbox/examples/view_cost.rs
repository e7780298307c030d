//! Measures the cost of a view: runs a command in turns without and with one, and prints medians.
//!
//! ```sh
//! cargo build --release -p proctor-sandbox --bin proctor-sandbox --example view_cost
//! target/release/examples/view_cost REPOSITORY ROUNDS COMMAND…
//! ```
//!
//! The CPU time includes the set-up, the command and the server of the view. The wall time is the time from the start of
//! the sandbox to the exit of the command.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Read;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::plan::{Argv, Leaks, Limits, Network, RelPath};
use proctor_sandbox::{
    EventPoll, FileBatches, GitDirs, Host, HostConfig, Launcher, Policy, RepoFacts, RunSpace, RunSpaceConfig,
    SandboxEvent, SandboxReuse, ViewTrace, WaitStatus,
};
use rustix::event::{PollFd, PollFlags};

/// The result of one command.
struct Sample {
    wall: Duration,
    cpu: Duration,
    trace: Option<ViewTrace>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [repo, rounds, command @ ..] = arguments.as_slice() else { return Err("REPOSITORY ROUNDS COMMAND…".into()) };
    let state = tempfile::tempdir()?;
    let helper = std::env::current_exe()?.ancestors().nth(2).ok_or("no directory")?.join("proctor-sandbox");
    let home = state.path().join("home");
    std::fs::create_dir(&home)?;
    let launcher = Launcher::start(Host::new(HostConfig { helper, state_dir: state.path().join("state"), home })?)?;
    let facts = RepoFacts::read(repo.as_ref())?;
    let mut samples = [Vec::new(), Vec::new()];
    for round in 0..rounds.parse::<usize>()? + 1 {
        for view in [false, true] {
            let sample = run(&launcher, &facts, command, view)?;
            // The first round warms the host's caches.
            if round > 0 {
                samples[usize::from(view)].push(sample);
            }
        }
    }
    let [plain, viewed] = samples;
    for (name, samples) in [("direct", &plain), ("view", &viewed)] {
        let ms = |of: fn(&Sample) -> Duration| median(samples.iter().map(of)).as_secs_f64() * 1e3;
        println!("{name:6} cpu {:8.2} ms  wall {:8.2} ms", ms(|one| one.cpu), ms(|one| one.wall));
    }
    match viewed.last().and_then(|sample| sample.trace.as_ref()) {
        Some(Ok(trace)) => {
            let read = trace.entries().iter().filter(|entry| entry.read).count();
            println!("{} paths, {read} read, {} bytes", trace.entries().len(), trace.encode().len());
        }
        other => println!("no trace: {other:?}"),
    }
    Ok(())
}

fn run(launcher: &Launcher, facts: &RepoFacts, command: &[String], view: bool) -> Result<Sample, Box<dyn Error>> {
    let config = RunSpaceConfig {
        disk_bytes: 256 << 20,
        inodes: 1 << 16,
        tolerated: Tolerated::default(),
        reuse: SandboxReuse::Never,
        caches: None,
    };
    let space = RunSpace::create(launcher, config)?;
    let git = facts.path.join(".git");
    let policy = Policy {
        repo: facts.path.clone(),
        checkout: None,
        git: GitDirs { worktree_git: git.exists().then_some(git), ..GitDirs::default() },
        workdir: RelPath::new(".")?,
        argv: Argv::new(command.to_vec())?,
        files: FileBatches::default(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())]),
        network: Network::Deny,
        leaks: Leaks::Ignore,
        limits: Limits::UNLIMITED,
        home: launcher.host().home().to_owned(),
        hide: Vec::new(),
        tools: Vec::new(),
        caches: Vec::new(),
        tolerated: [proctor_core::model::enforcement::Control::Cgroup].into_iter().collect(),
        view,
        inputs: None,
    };
    let (cpu_before, began) = (cpu_of_children(), Instant::now());
    let (running, _layer) = launcher.spawn(&space, &[], facts, &policy)?;
    let mut wall = Duration::ZERO;
    loop {
        match running.recv()? {
            EventPoll::Event(SandboxEvent::Ready { .. }) => {}
            EventPoll::Event(SandboxEvent::Exited { status: WaitStatus::Code(_), .. }) => wall = began.elapsed(),
            EventPoll::Event(other) => return Err(format!("{other:?}").into()),
            EventPoll::Closed => break,
            EventPoll::WouldBlock => {
                rustix::event::poll(&mut [PollFd::from_borrowed_fd(running.as_fd(), PollFlags::IN)], None)?;
            }
        }
    }
    std::fs::File::from(running.stdout.try_clone()?).read_to_end(&mut Vec::new())?;
    let trace = running.take_view_trace();
    drop(running);
    // The helper ends, and the reaper collects it with everything that it has reaped.
    while has_children()? {
        std::thread::yield_now();
    }
    Ok(Sample { wall, cpu: cpu_of_children().saturating_sub(cpu_before), trace })
}

fn has_children() -> Result<bool, Box<dyn Error>> {
    for task in std::fs::read_dir("/proc/self/task")? {
        if !std::fs::read_to_string(task?.path().join("children"))?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn cpu_of_children() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_micros(u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap_or_default())
    };
    usage.map(|usage| time(usage.user_time()) + time(usage.system_time())).unwrap_or_default()
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
