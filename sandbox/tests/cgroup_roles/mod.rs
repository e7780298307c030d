//! Runs the roles of the processes that the tests start, such as a process that exceeds its memory limit.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;

use proctor_sandbox::cgroup::{CgroupLocation, DiscoveryPaths};
use rustix::time::ClockId;

use crate::{
    BALLOON_BYTES, BURN_MS, CgroupTestResult, GroupMember, LEFTOVER_LIFETIME, release_child, this_program,
    use_delegated_cgroup, without_systemd,
};

pub(super) fn run_named_role(part: &str, more: &[&str]) -> CgroupTestResult {
    match (part, more) {
        ("find", []) => print_location(&DiscoveryPaths::default()),
        ("find", [_]) => print_location(&without_systemd()),
        ("own", []) => run_group_owner(),
        ("divide", []) => use_delegated_cgroup(),
        ("hold", []) => Ok(std::io::stdin().read_to_end(&mut Vec::new()).map(drop)?),
        ("stay", []) => {
            std::thread::park_timeout(LEFTOVER_LIFETIME);
            Ok(())
        }
        ("balloon", ["heap"]) => {
            std::hint::black_box(vec![1_u8; BALLOON_BYTES]);
            Ok(())
        }
        ("balloon", ["memfd"]) => fill_memory_file(),
        ("threads", [most]) => start_threads(most.parse()?),
        ("leave-a-burner", []) => Ok(release_child(&mut this_program(&["burn"])?.stdin(Stdio::piped()).spawn()?)?),
        ("burn", []) => {
            use_cpu_time();
            Ok(())
        }
        _ => Err(format!("no part `{part}`").into()),
    }
}

fn print_location(roots: &DiscoveryPaths) -> CgroupTestResult {
    match CgroupLocation::find_with_paths(roots) {
        Ok(seat) => {
            println!("{}", seat.describe());
            Ok(())
        }
        Err(why) => {
            println!("{why}");
            Err("no seat".into())
        }
    }
}

/// Prints the location and group of this process, and drops them when the input ends.
fn run_group_owner() -> CgroupTestResult {
    let seat = CgroupLocation::find()?;
    let group = seat.create_group()?;
    let inmate = GroupMember::start(&group, &["stay"])?;
    let dirs: Vec<_> = group.dirs().into_iter().chain(seat.dirs()).map(|dir| dir.display().to_string()).collect();
    println!("{}\n{}\n{}", inmate.child.id(), group.join_fds().unified.is_some(), dirs.join(" "));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn fill_memory_file() -> CgroupTestResult {
    let mut file = fs::File::from(rustix::fs::memfd_create("balloon", rustix::fs::MemfdFlags::CLOEXEC)?);
    let chunk = vec![1_u8; 1 << 20];
    (0..BALLOON_BYTES / chunk.len()).try_for_each(|_| file.write_all(&chunk))?;
    Ok(())
}

fn start_threads(most: usize) -> CgroupTestResult {
    for started in 0..most {
        if let Err(error) = std::thread::Builder::new().stack_size(1 << 16).spawn(std::thread::park) {
            let again = error.raw_os_error() == Some(rustix::io::Errno::AGAIN.raw_os_error());
            println!("{started} {}", if again { "EAGAIN".to_owned() } else { error.to_string() });
            return Ok(());
        }
    }
    println!("{most} without an error");
    Ok(())
}

fn use_cpu_time() {
    loop {
        let spent = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
        if spent.tv_sec * 1000 + spent.tv_nsec / 1_000_000 > BURN_MS {
            return;
        }
    }
}
