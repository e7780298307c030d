//! Fills layers from lists of changes, as for a step that ran on another machine.

use libtest_mimic::Failed;
use proctor_sandbox::agent::{LayerChange, LayerChangeKind};
use proctor_sandbox::layer_changes::LayerBounds;
use proctor_sandbox::{Layer, Sealed};

use crate::environment::{SandboxTestEnv, TestCommand, names};

const BOUNDS: LayerBounds = LayerBounds { entries: 1000, bytes: 1 << 20 };

fn read(layer: &Layer<Sealed>) -> Result<(Vec<LayerChange>, Vec<u8>), Failed> {
    let mut content = Vec::new();
    let changes = layer.read_changes(BOUNDS, &|_| false, &mut content)?;
    Ok((changes, content))
}

pub(crate) fn filled_layer_equals_the_original(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "echo new > new.txt && echo changed >> tracked.txt && rm -r src && mkdir src && echo x > src/x && \
                  chmod 500 src && ln -s new.txt name && mkfifo -m 600 fifo";
    let original = bench.run(&TestCommand::shell(script))?;
    original.stdout_of_success();
    let (changes, content) = read(&original.layer)?;
    let layer = bench.space.new_layer(bench.launcher.host(), &bench.facts)?;
    layer.fill(&changes, content.as_slice(), BOUNDS)?;
    let filled = layer.seal();
    assert_eq!(read(&filled)?, (changes, content));
    // A later step sees and can change the same tree over both layers.
    let later = "find . -path ./.git -prune -o -printf '%y %m %U %p %l\\n' | sort; cat new.txt tracked.txt src/x; \
                 chmod 700 src; echo y >> src/x; rm new.txt; find . -path ./.git -prune -o -print | sort";
    let seen =
        |layer| Ok::<_, Failed>(bench.run_over(&TestCommand::shell(later), &[layer])?.stdout_of_success().to_owned());
    assert_eq!(seen(&filled)?, seen(&original.layer)?);
    Ok(())
}

pub(crate) fn refused_layer_creates_nothing_outside(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let layer = bench.space.new_layer(bench.launcher.host(), &bench.facts)?;
    for path in ["../escaped", "a/../../escaped", "/escaped"] {
        let kind = LayerChangeKind::Directory { mode: 0o755, opaque: false };
        let change = LayerChange { path: path.as_bytes().to_vec(), kind };
        let error = layer.fill(&[change], &b""[..], BOUNDS).expect_err("refused").to_string();
        assert!(error.contains("relative path"), "{error}");
    }
    let sealed = layer.seal();
    assert_eq!(names(sealed.upper())?, [""; 0]);
    Ok(sealed.discard()?)
}
