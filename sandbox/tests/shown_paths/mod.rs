//! Tests of host files that are shown outside of the repository, when another user can change their paths and root
//! performs the set-up.
#![expect(clippy::disallowed_methods, reason = "trials build their world with plain files")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use libtest_mimic::Failed;
use proctor_core::model::enforcement::Control;
use proctor_sandbox::{AccessRights, SandboxEvent, ToolKind, ToolMount};

use crate::environment::{SandboxTestEnv, TestCommand};

/// A user that is neither root nor the user of the tests.
const THIRD_USER: u32 = 1002;

fn tool(bench: &SandboxTestEnv, source: &Path, name: &str) -> ToolMount {
    let at = bench.home.join(name);
    ToolMount { source: source.to_owned(), at, kind: ToolKind::ReadOnly, rights: AccessRights::Steps }
}

fn home_command(bench: &SandboxTestEnv, script: &str, tools: Vec<ToolMount>) -> TestCommand {
    let mut step = TestCommand::shell(&format!("cd ~; {script}"));
    step.env.insert("HOME".to_owned(), bench.home.display().to_string());
    TestCommand { tools, ..step }
}

/// Creates a directory with this mode that contains a tool readable by every user who can enter the directory.
fn closed_tool_dir(bench: &SandboxTestEnv, name: &str, mode: u32) -> Result<std::path::PathBuf, Failed> {
    let dir = bench.root.join(name);
    fs::create_dir_all(dir.join("tool"))?;
    fs::write(dir.join("tool/t"), "seen\n")?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(mode))?;
    Ok(dir)
}

/// The owner of a directory on a tool's path can redirect the path, which must show no more than that owner can
/// access.
pub(crate) fn skips_tool_behind_closed_directory(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (thirds, of_group) = (closed_tool_dir(bench, "thirds", 0o700)?, closed_tool_dir(bench, "of_group", 0o750)?);
    if bench.role.is_set_up_by_root() {
        chown(&thirds, Some(THIRD_USER), Some(THIRD_USER))?;
        chown(&of_group, Some(THIRD_USER), Some(0))?;
    }
    let sources = [&thirds, &of_group].map(|dir| dir.join("tool"));
    let theirs = sources.iter().zip([".thirds", ".of_group"]).map(|(source, name)| tool(bench, source, name));
    let by_operator = ToolMount { rights: AccessRights::Ours, ..tool(bench, &sources[0], ".named") };
    let step = home_command(bench, "cat .*/t 2>/dev/null; ls -d .*/", theirs.chain([by_operator]).collect());
    let shown = if bench.role.is_foreign() { vec![".named/"] } else { vec![".named/", ".of_group/", ".thirds/"] };
    let expected = ["seen"].repeat(shown.len()).into_iter().chain(shown.iter().copied());
    let ran = bench.run(&step)?;
    let listed = ran.stdout_of_success().lines().filter(|line| !["./", "../"].contains(line));
    assert_eq!(listed.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{ran:?}");
    Ok(())
}

/// The tool's path was resolved earlier and has since become a link: in its last component, and in an earlier one.
pub(crate) fn does_not_follow_link_on_tool_path(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let secret = bench.root.join("secret/tool");
    fs::create_dir_all(&secret)?;
    fs::write(secret.join("t"), "secret\n")?;
    symlink(&secret, bench.home.join("end"))?;
    symlink(bench.root.join("secret"), bench.home.join("way"))?;
    for rights in [AccessRights::Steps, AccessRights::Ours] {
        let tools = ["end", "way/tool"].map(|name| ToolMount { rights, ..tool(bench, &bench.home.join(name), name) });
        let ran = bench.run(&home_command(bench, "ls", tools.into()))?;
        assert_eq!(ran.stdout_of_success(), "", "{rights:?}: {ran:?}");
    }
    Ok(())
}

/// A link is followed neither at the source of a mask nor at its mount point, since the file to be covered would be
/// elsewhere.
pub(crate) fn refuses_mask_redirected_by_link(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (shown, aside) = (bench.home.join(".tool"), bench.root.join("aside"));
    fs::create_dir_all(shown.join("dir"))?;
    fs::create_dir(&aside)?;
    fs::write(shown.join("dir/key"), "token")?;
    fs::write(aside.join("key"), "")?;
    symlink(&aside, shown.join("planted"))?;
    symlink(shown.join("dir/key"), shown.join("link"))?;
    let mask = |source: &Path, at: &str| ToolMount {
        source: source.to_owned(),
        kind: ToolKind::Masked,
        ..tool(bench, source, &format!(".tool/{at}"))
    };
    let key = shown.join("dir/key");
    let run = |mask| bench.run(&home_command(bench, "cat .tool/dir/key", vec![tool(bench, &shown, ".tool"), mask]));
    assert_eq!(run(mask(&key, "dir/key"))?.stdout_of_success(), "", "it is laid where nothing was planted");
    for (source, at) in [(&key, "planted/key"), (&key, "link"), (&shown.join("planted/key"), "dir/key")] {
        let ran = run(mask(source, at))?;
        let is_refused =
            matches!(ran.reports.as_slice(), [SandboxEvent::Refused { control: Control::HiddenPaths, .. }]);
        assert!(is_refused, "{at}: {ran:?}");
    }
    Ok(())
}
