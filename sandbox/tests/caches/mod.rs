//! Tests of repository directories that outlive a step.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use libtest_mimic::Failed;
use proctor_core::model::plan::RelPath;
use proctor_sandbox::{CACHE_UPPER, CacheMount, CacheSource, SandboxEvent, StepUser};

use crate::environment::{self, SandboxTestEnv, TestCommand, collect_events, read_line};

pub(crate) fn cache(bench: &SandboxTestEnv, at: &str) -> Result<CacheMount, Failed> {
    let source = bench.root.join("cache");
    fs::create_dir_all(&source)?;
    if bench.role.is_foreign() {
        std::os::unix::fs::chown(&source, Some(bench.facts.uid), Some(bench.facts.gid))?;
    }
    Ok(CacheMount { source: CacheSource::Directory(source), at: RelPath::new(at)? })
}

pub(crate) fn keeps_caches_after_step(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if bench.role.has_no_namespaces() && bench.role.is_set_up_by_root() {
        // Under root, a step cannot enter root's state directory, as its record says.
        return Ok(());
    }
    let mut step = TestCommand::shell("mkdir -p build/target/x && echo kept > build/target/x/y");
    step.caches = vec![cache(bench, "build/target")?];
    let first = bench.run(&step)?;
    assert_eq!(first.stdout_of_success(), "");
    assert_eq!(environment::names(first.layer.upper())?, [""; 0], "the mount point is no write of the step's");
    step.argv = TestCommand::shell("cat build/target/x/y").argv;
    assert_eq!(bench.run(&step)?.stdout_of_success(), "kept");
    // Another run may use another user of the host.
    let space = bench.new_run_space()?;
    step.argv =
        TestCommand::shell("echo more >> build/target/x/y && rm -r build/target/x && ls -A build/target | wc -l").argv;
    let (running, _layer) = bench.launcher.spawn(&space, &[], &bench.facts, &bench.policy(&step)?)?;
    assert_eq!(read_line(&running.stdout)?, "0");
    collect_events(&running)?;
    Ok(())
}

/// Unlike a cache, an original directory keeps its owner, and new files in it belong to the same user.
pub(crate) fn writes_original_directory(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if bench.role.has_no_namespaces() || bench.role.is_foreign() {
        // Without namespaces, root's directory cannot appear as that of the step.
        return Ok(());
    }
    let source = bench.root.join("original");
    fs::create_dir_all(&source)?;
    fs::write(source.join("old"), "1\n")?;
    let owner = fs::metadata(&source)?.uid();
    let mut step =
        TestCommand::shell("echo 2 >> data/old && echo new > data/new && stat -c %u data/old data/new | uniq | wc -l");
    step.caches = vec![CacheMount { source: CacheSource::Original(source.clone()), at: RelPath::new("data")? }];
    assert_eq!(bench.run(&step)?.stdout_of_success(), "1");
    assert_eq!(fs::read_to_string(source.join("old"))?, "1\n2\n");
    for path in [source.clone(), source.join("old"), source.join("new")] {
        assert_eq!(fs::metadata(&path)?.uid(), owner, "{}", path.display());
    }
    Ok(())
}

pub(crate) fn refuses_cache_through_link(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::shell("true");
    for at in ["link", "link/target", "tracked.txt"] {
        step.caches = vec![cache(bench, at)?];
        let ran = bench.run(&step)?;
        assert!(matches!(ran.reports.as_slice(), [SandboxEvent::Refused { .. }]), "{at}: {ran:?}");
    }
    // An earlier step creates the link.
    step.caches = Vec::new();
    step.argv = TestCommand::shell("rm -rf src && ln -s /usr src").argv;
    let planted = bench.run(&step)?;
    step.caches = vec![cache(bench, "src/share")?];
    let ran = bench.run_over(&step, &[&planted.layer])?;
    assert!(matches!(ran.reports.as_slice(), [SandboxEvent::Refused { .. }]), "{ran:?}");
    Ok(())
}

/// On disk, layers belong to the user that all runs share, and the writes of a run belong to its own user.
pub(crate) fn keeps_cache_layers_unchanged(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let [room, low] = ["room", "low"].map(|name| bench.root.join(name));
    fs::create_dir_all(low.join("d"))?;
    fs::create_dir_all(room.join(CACHE_UPPER))?;
    for file in ["kept", "d/f"] {
        fs::write(low.join(file), "old\n")?;
    }
    let user = StepUser::choose(bench.launcher.host(), &bench.facts)?;
    if user.is_set_up_by_root() {
        let (uid, gid) = user.ids_in_sandbox();
        for path in ["", "kept", "d", "d/f"] {
            std::os::unix::fs::chown(low.join(path), Some(uid), Some(gid))?;
        }
    }
    let script = "cat c/kept && echo new > c/kept && rm -r c/d && mkdir c/own && mv c/own c/moved && stat -c %u c/kept c && id -u";
    let mut step = TestCommand::shell(script);
    let source = CacheSource::Layers { room: room.clone(), lowers: vec![low.clone()] };
    step.caches = vec![CacheMount { source: source.clone(), at: RelPath::new("c")? }];
    let ran = bench.run(&step)?;
    let lines: Vec<&str> = ran.stdout_of_success().lines().collect();
    assert_eq!((lines[0], lines.len()), ("old", 4), "{ran:?}");
    assert!(lines[1..].iter().all(|uid| *uid == lines[3]), "its files are its own: {ran:?}");
    assert_eq!((fs::read_to_string(low.join("kept"))?.as_str(), low.join("d/f").exists()), ("old\n", true));
    let upper = room.join(CACHE_UPPER);
    assert_eq!(fs::read_to_string(upper.join("kept"))?, "new\n");
    assert!(upper.join("moved").is_dir() && fs::symlink_metadata(upper.join("d"))?.file_type().is_char_device());
    // The next command with the same cache sees the writes.
    step.argv = TestCommand::shell("cat c/kept && ls c").argv;
    assert_eq!(bench.run(&step)?.stdout_of_success(), "new\nkept\nmoved");
    bench.space.release_cache(&source);
    assert_eq!(bench.space.ready_count(), 0);
    Ok(())
}
