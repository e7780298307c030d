//! File types of pre-commit and how to recognize them: the tags of its library `identify` that published
//! configurations use.

/// A file type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileType {
    /// The tag of the type.
    pub(super) tag: &'static str,
    /// The extensions of its names, without the dot.
    pub(super) extensions: &'static [&'static str],
    /// File names of this type without one of these extensions.
    pub(super) names: &'static [&'static str],
    /// Interpreters of its scripts, for files whose name has no extension.
    pub(super) interpreters: &'static [&'static str],
}

const fn kind(tag: &'static str, extensions: &'static [&'static str]) -> FileType {
    FileType { tag, extensions, names: &[], interpreters: &[] }
}

impl FileType {
    const fn named(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }

    const fn run_by(self, interpreters: &'static [&'static str]) -> Self {
        Self { interpreters, ..self }
    }

    /// Returns the type for a tag.
    pub(super) fn of(tag: &str) -> Option<&'static Self> {
        TYPES.iter().find(|kind| kind.tag == tag)
    }
}

const XML: &[&str] = &[
    "csproj",
    "fsproj",
    "gpx",
    "inx",
    "kml",
    "lpi",
    "mscx",
    "pom",
    "props",
    "pyproj",
    "resx",
    "rng",
    "slnx",
    "svg",
    "targets",
    "urdf",
    "vbproj",
    "vcxproj",
    "wixproj",
    "wsdl",
    "wxi",
    "wxl",
    "wxs",
    "xhtml",
    "xacro",
    "xlf",
    "xliff",
    "xaml",
    "xcscheme",
    "xcworkspacedata",
    "xml",
    "xsd",
    "xsl",
    "xslt",
    "yin",
    "zcml",
];
const CPP: &[&str] = &[
    "c++", "c++m", "cc", "ccm", "cpp", "cppm", "cxx", "cxxm", "h", "hh", "hpp", "hxx", "inl", "ino", "ipp", "ixx",
    "mm", "tpp",
];
const SHELL_NAMES: &[&str] = &[
    ".bash_aliases",
    ".bash_profile",
    ".bashrc",
    ".cshrc",
    ".envrc",
    ".profile",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshrc",
    ".zshenv",
    "PKGBUILD",
    "direnvrc",
];
const YAML_NAMES: &[&str] = &[".ansible-lint", ".clang-format", ".clang-tidy", ".salt-lint", ".yamllint"];
const TOML_NAMES: &[&str] = &["Cargo.toml", "Cargo.lock", "Pipfile", "poetry.lock", "pyproject.toml", "uv.lock"];
const RUBY_NAMES: &[&str] = &["Brewfile", "config.ru", "Fastfile", "Gemfile", "Rakefile", "Vagrantfile"];
const TEXT_NAMES: &[&str] = &[
    "AUTHORS",
    "CHANGELOG",
    "CONTRIBUTING",
    "COPYING",
    "LICENSE",
    "MAINTAINERS",
    "NEWS",
    "NOTICE",
    "PATENTS",
    "README",
];
const INI_NAMES: &[&str] = &[
    ".codespellrc",
    ".coveragerc",
    ".flake8",
    ".gitconfig",
    ".gitlint",
    ".hgrc",
    ".isort.cfg",
    ".pypirc",
    ".rstcheck.cfg",
    ".sqlfluff",
    "pylintrc",
    "setup.cfg",
];

/// Every type, by its tag.
const TYPES: &[FileType] = &[
    kind("asciidoc", &["adoc", "asciidoc"]),
    kind("astro", &["astro"]),
    kind("bash", &["bash", "bats"])
        .named(&[".bash_aliases", ".bash_profile", ".bashrc", ".envrc", "PKGBUILD", "direnvrc"])
        .run_by(&["bash", "bats"]),
    kind("batch", &["bat", "cmd"]),
    kind("bats", &["bats"]).run_by(&["bats"]),
    kind("bazel", &["bazel", "bzl"]).named(&["BUILD", "WORKSPACE"]),
    kind("c", &["c", "h"]),
    kind("c#", &["cs", "csx"]),
    kind("c++", CPP),
    kind("clojure", &["clj", "cljc", "cljs", "edn"]),
    kind("cmake", &["cmake"]).named(&["CMakeLists.txt"]),
    kind("csh", &["csh"]).named(&[".cshrc"]).run_by(&["csh"]),
    kind("css", &["css"]),
    kind("csv", &["csv"]),
    kind("cuda", &["cu", "cuh"]),
    kind("cython", &["pxd", "pxi", "pyx"]),
    kind("dart", &["dart"]),
    kind("diff", &["diff", "patch"]),
    kind("dockerfile", &[]).named(&["Containerfile", "Dockerfile"]),
    kind("dotenv", &["env"]),
    kind("elixir", &["ex", "exs"]),
    kind("erb", &["erb"]),
    kind("fish", &["fish"]),
    kind("gherkin", &["feature"]),
    kind("go", &["go"]),
    kind("go-mod", &[]).named(&["go.mod"]),
    kind("graphql", &["graphql"]),
    kind("groovy", &["gradle", "groovy", "jenkins", "jenkinsfile"]).named(&["Jenkinsfile"]),
    kind("haskell", &["hs"]),
    kind("hcl", &["hcl"]),
    kind("header", &["h", "hh", "hpp", "hxx"]),
    kind("html", &["htm", "html", "xhtml"]),
    kind("image", &["avif", "bmp", "gif", "jpeg", "jpg", "png", "ppm", "svg", "tif", "tiff", "webp"]),
    kind("ini", &["ini"]).named(INI_NAMES),
    kind("java", &["java"]),
    kind("javascript", &["cjs", "js", "mjs"]).run_by(&["node", "nodejs"]),
    kind("jinja", &["j2", "jinja", "jinja2"]),
    kind("json", &["ejson", "geojson", "ipynb", "json", "jsonld"]).named(&[
        ".babelrc",
        ".bowerrc",
        ".csslintrc",
        ".jshintrc",
        "Pipfile.lock",
    ]),
    kind("json5", &["json5"]),
    kind("jsx", &["jsx"]),
    kind("julia", &["jl"]),
    kind("jupyter", &["ipynb"]),
    kind("kotlin", &["kt", "kts"]),
    kind("ksh", &[]).run_by(&["ksh"]),
    kind("less", &["less"]),
    kind("lua", &["lua"]),
    kind("makefile", &["make", "mk"]).named(&["GNUmakefile", "Makefile", "makefile"]),
    kind("markdown", &["markdown", "md"]),
    kind("mdx", &["mdx"]),
    kind("nix", &["nix"]),
    kind("objective-c", &["m"]),
    kind("objective-c++", &["mm"]),
    kind("ocaml", &["ml", "mli"]),
    kind("pem", &["crt", "key", "pem"]),
    kind("perl", &["pl", "pm"]).run_by(&["perl"]),
    kind("php", &["php", "php4", "php5", "phtml"]).run_by(&["php", "php7", "php8"]),
    kind("plain-text", &["txt"]).named(TEXT_NAMES),
    kind("pofile", &["po"]),
    kind("powershell", &["ps1", "psd1", "psm1"]),
    kind("prisma", &["prisma"]),
    kind("proto", &["proto"]),
    kind("pyi", &["pyi"]),
    kind("pyproject", &[]).named(&["pyproject.toml"]),
    kind("python", &["gyp", "gypi", "py", "pyt", "pyw", "tac", "wsgi"])
        .named(&[".pdbrc", "wscript"])
        .run_by(&["python", "python2", "python3"]),
    kind("r", &["r"]),
    kind("robot", &["robot"]),
    kind("rst", &["rst"]),
    kind("ruby", &["gemspec", "jbuilder", "rake", "rb"]).named(RUBY_NAMES).run_by(&["ruby"]),
    kind("rust", &["rs"]),
    kind("sass", &["sass"]),
    kind("scala", &["sbt", "sc", "scala"]),
    kind("scss", &["scss"]),
    kind("sh", &[]).run_by(&["sh"]),
    kind("shell", &["bash", "bats", "csh", "sh", "zsh"])
        .named(SHELL_NAMES)
        .run_by(&["ash", "bash", "bats", "csh", "dash", "ksh", "sh", "tcsh", "zsh"]),
    kind("solidity", &["sol"]),
    kind("sql", &["sql"]),
    kind("svelte", &["svelte"]),
    kind("svg", &["svg"]),
    kind("swift", &["swift"]),
    kind("system-verilog", &["sv", "svh"]),
    kind("tcsh", &[]).run_by(&["tcsh"]),
    kind("terraform", &["tf", "tfvars"]),
    kind("tex", &["sty", "tex"]),
    kind("textproto", &["textproto", "txtpb"]),
    kind("toml", &["toml"]).named(TOML_NAMES),
    kind("ts", &["ts"]),
    kind("tsv", &["tsv"]),
    kind("tsx", &["tsx"]),
    kind("verilog", &["v", "vh"]),
    kind("vhdl", &["vhd"]),
    kind("vue", &["vue"]),
    kind("xml", XML),
    kind("yaml", &["eyaml", "yaml", "yamlld", "yml"]).named(YAML_NAMES),
    kind("zig", &["zig"]),
    kind("zsh", &["zsh"]).named(&[".zlogin", ".zlogout", ".zprofile", ".zshrc", ".zshenv"]).run_by(&["zsh"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_sorted_and_known_by_something() {
        assert!(TYPES.is_sorted_by_key(|kind| kind.tag));
        for kind in TYPES {
            let known = kind.extensions.len() + kind.names.len() + kind.interpreters.len();
            assert!(known > 0, "{kind:?}");
        }
        assert_eq!(FileType::of("python").expect("known").extensions[2], "py");
        assert_eq!(FileType::of("nonsense"), None);
    }
}
