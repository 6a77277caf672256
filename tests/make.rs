//! What `make` refuses before it installs or builds anything, and what it installs first.

use regex::Regex;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Variables of a `make` that runs this test, which are not for the one that it runs.
const OF_OTHERS: [&str; 6] = ["MAKEFLAGS", "MAKELEVEL", "MODULE", "PORT", "REPOSITORY", "SERVER"];

fn make(words: &str) -> Command {
    make_in(Path::new(env!("CARGO_MANIFEST_DIR")), words)
}

fn make_in(folder: &Path, words: &str) -> Command {
    let mut command = Command::new("make");
    command.args(["--no-print-directory", "-C"]).arg(folder).args(words.split(' '));
    for name in OF_OTHERS {
        command.env_remove(name);
    }
    command
}

/// Writes a program of `sh` into a folder.
fn fake(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The `PATH` that finds the programs of this folder first.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), env::var("PATH").unwrap())
}

/// Returns whether a command succeeds, and what it prints.
fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Runs `make`, which has to fail without a call of cargo or Python, and returns what it printed.
fn refusal(words: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    for tool in ["cargo", "python3"] {
        fake(folder.path(), tool, &format!("echo \"$0\" \"$@\" >>'{}'\nexit 1", calls.display()));
    }
    let (succeeds, printed) = run(make(words).env("PATH", path_with(folder.path())));
    assert!(!succeeds, "make {words}: {printed}");
    assert!(!calls.exists(), "make {words} called {}", fs::read_to_string(calls).unwrap());
    printed
}

#[test]
fn a_wrong_port_or_server_is_refused_before_anything_is_built() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let used = listener.local_addr().unwrap().port();
    for (words, line) in [
        ("run PORT=abc", "PORT must be a number from 1 to 65535, not 'abc'"),
        ("run PORT=65536", "PORT must be a number from 1 to 65535, not '65536'"),
        (&*format!("run PORT={used}"), &*format!("port {used} is in use")),
        ("run SERVER=/nope", "there is no program /nope"),
        ("test SERVER=/nope", "there is no program /nope"),
        ("run SERVER=/bin/sh", "/bin/sh is another program"),
        ("run SERVER=/", "there is no program /"),
    ] {
        let printed = refusal(words);
        assert!(printed.contains(line), "make {words}: {printed}");
    }
}

#[test]
fn examples_and_clients_name_what_builds_the_module_that_they_lack() {
    for words in [
        "-C examples/monitoring run",
        "-C examples/go run",
        "-C examples/languages setup-server",
        "-C examples/rust run",
        "-C clients/go test",
        "-C clients/rust test",
    ] {
        let printed = refusal(&format!("{words} MODULE=/nope.so"));
        let line = "no module at /nope.so: run 'make build' at the top, or set MODULE";
        assert!(printed.contains(line), "make {words}: {printed}");
    }
}

/// Copies the files of the repository into a folder whose name has a space; returns it.
fn copy_of_tree(folder: &Path) -> PathBuf {
    let copy = folder.join("two words");
    fs::create_dir(&copy).unwrap();
    let script = "git ls-files -z | xargs -0 cp --parents -t \"$0\"";
    let mut shell = Command::new("bash");
    let status = shell.args(["-c", script]).arg(&copy).current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(status.unwrap().success());
    copy
}

/// In the commands of every target, those of the folders that it calls included.
#[test]
fn a_space_in_the_name_of_the_folder_ends_no_word() {
    let folder = tempfile::tempdir().unwrap();
    let copy = copy_of_tree(folder.path());
    let (_, help) = run(&mut make_in(&copy, "help"));
    let targets: Vec<&str> =
        help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    assert!(targets.len() > 30, "{help}");
    let quoted = Regex::new(r#"'[^']*'|"[^"]*""#).unwrap();
    for target in targets {
        let (_, recipe) = run(&mut make_in(&copy, &format!("--dry-run {target}")));
        for line in recipe.lines() {
            assert!(!quoted.replace_all(line, "").contains("two words"), "make {target}: {line}");
            let words = line.matches("words/").count();
            assert_eq!(words, line.matches("two words/").count(), "make {target}: {line}");
        }
    }
}

#[test]
fn a_failure_of_cargo_is_blamed_on_the_network_only_if_it_was_that() {
    for (message, is_network) in [
        (
            "the target directory is set to an empty string in the `CARGO_TARGET_DIR` environment variable",
            false,
        ),
        ("failed to download from `https://example.org`: [6] Could not resolve host", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fake(
            folder.path(),
            "cargo",
            &format!(
                "case $1 in --version) echo cargo 1.99.0 ;; *) echo 'error: {message}' >&2; exit 1 ;; esac"
            ),
        );
        let (succeeds, printed) = run(make("build").env("PATH", path_with(folder.path())));
        assert!(!succeeds && printed.contains(message), "{printed}");
        assert_eq!(printed.contains("is there a network?"), is_network, "{printed}");
    }
}

/// The script that installs what is missing, with the programs of this folder.
fn install(what: &str, folder: &Path) -> Command {
    let mut command = Command::new("scripts/install.sh");
    command.args(what.split(' ')).env("PATH", path_with(folder)).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// As on a fresh Debian, which installs updates by itself after its first boot.
#[test]
fn install_says_what_it_installs_and_waits_for_another_program_that_does() {
    let folder = tempfile::tempdir().unwrap();
    fake(folder.path(), "id", "echo 0");
    fake(folder.path(), "sleep", "exec /bin/sleep 0.05");
    let calls = folder.path().join("calls");
    let held = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 17 (apt-get)";
    // Each call of apt-get fails once.
    let apt = format!(
        "echo \"$@\" >>'{0}'; [ $(($(wc -l <'{0}') % 2)) = 0 ] || {{ echo '{held}'; exit 100; }}",
        calls.display()
    );
    fake(folder.path(), "apt-get", &apt);
    // Hides the programs of this machine from `command -v`.
    let hidden = "command() { case $2 in mmdebstrap | protoc) return 1 ;; esac; builtin command \"$@\"; }";
    let mut command = install("protoc chroot", folder.path());
    let (succeeds, printed) = run(command.env("BASH_FUNC_command%%", &hidden["command".len()..]));
    assert!(succeeds, "{printed}");
    assert!(
        printed.contains(&format!("waiting for another program that installs packages: {}", &held[3..])),
        "{printed}"
    );
    let packages = "protobuf-compiler libprotobuf-dev mmdebstrap debian-archive-keyring";
    assert!(printed.contains(&format!("installing system packages with apt-get: {packages}\n")), "{printed}");
    let calls = fs::read_to_string(calls).unwrap();
    let installs = calls.lines().filter(|line| line.ends_with(&format!("install {packages}"))).count();
    assert_eq!((calls.lines().count(), installs), (4, 2), "{calls}");
}

/// As on Debian 13 when `make run` came before `make gate`: the module is content with Debian's own Rust.
#[test]
fn debians_older_rust_makes_way_for_the_one_that_the_gate_needs() {
    for (is_debians, line) in [(true, "apt-get: cargo-web"), (false, "install Rust by https://rustup.rs")] {
        let folder = tempfile::tempdir().unwrap();
        let cargo = folder.path().join("cargo");
        fake(folder.path(), "cargo", "echo cargo 1.85.1");
        fake(folder.path(), "id", "echo 0");
        fake(folder.path(), "dpkg", if is_debians { "exit 0" } else { "exit 1" });
        let candidate =
            "case $2 in cargo) echo '  Candidate: 1.85.1' ;; *) echo '  Candidate: 1.96.0' ;; esac";
        fake(folder.path(), "apt-cache", candidate);
        let upgrade = "case \"$*\" in *cargo-web*) echo 'echo cargo 1.96.0' >'_' ;; esac";
        fake(folder.path(), "apt-get", &upgrade.replace('_', cargo.to_str().unwrap()));
        let mut command = install("cargo", folder.path());
        let (succeeds, printed) = run(command.env("MANIFEST", "gate/Cargo.toml"));
        assert!(succeeds == is_debians && printed.contains(line), "{printed}");
    }
}

/// Its images are built last, half an hour after its start.
#[test]
fn a_release_begins_only_with_a_docker_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    for (script, runs) in [("exit 0", true), ("exit 1", false)] {
        fake(folder.path(), "docker", script);
        let (succeeds, printed) = run(&mut install("docker", folder.path()));
        assert!(succeeds == runs && printed.contains("IMAGES=") != runs, "{printed}");
    }
}

/// `redis-cli` makes clusters and runs the transcripts of the documentation, `ssh-keygen` signs what is tested below.
#[test]
fn every_target_installs_the_tools_that_its_tests_call() {
    for (words, tool) in [
        ("matrix", "redis"),
        ("cluster-test", "redis"),
        ("hostile", "redis"),
        ("test-server SERVER=redis-server", "redis"),
        ("test-musl", "redis"),
        ("test-pure", "ssh"),
        ("test-pure", "dash"),
        ("test-server SERVER=redis-server", "dash"),
    ] {
        let (_, recipe) = run(&mut make(&format!("--dry-run {words}")));
        let installs = |line: &str| line.contains("install.sh") && line.contains(&format!(" {tool}"));
        let install = recipe.lines().position(installs);
        let tests = ["matrix.sh", "test-cross.sh", "cargo test"];
        let test = recipe.lines().position(|line| tests.iter().any(|test| line.contains(test)));
        assert!(install.is_some() && test.is_some() && install <= test, "make {words}: {recipe}");
    }
}

const ADDRESS: &str = "https://example.org/owner/tokenbucket";

/// A dry run, with a file in the place of those that `make dist` builds: a tarball with one page. The address is written into a clone.
#[test]
fn a_release_has_signed_checksums_and_only_links_that_lead_somewhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let assert_runs = |script: &str| {
        let (succeeds, printed) = run(Command::new("sh").args(["-c", script]).current_dir(folder.path()));
        assert!(succeeds, "{script}: {printed}");
    };
    let version = env!("CARGO_PKG_VERSION");
    let here = format!("{ADDRESS}/blob/v{version}");
    let release = |out: &str, links: &[String]| {
        fs::create_dir_all(path("dist")).unwrap();
        let page: String = links.iter().map(|link| format!("[page]({link})\n")).collect();
        fs::write(path("README.md"), page).unwrap();
        assert_runs(
            "tar -czf dist/module.tar.gz README.md && cd dist && sha256sum module.tar.gz >SHA256SUMS",
        );
        let mut release =
            make(&format!("release DRY=1 REPOSITORY={ADDRESS} FOLDER={} VERSION={version}", path(out)));
        release.env("DIST", path("dist")).env("KEY", path("key")).env("LANGUAGES", "").env("IMAGES", "");
        run(&mut release)
    };
    assert_runs("ssh-keygen -q -t ed25519 -N '' -f key");
    let (succeeds, printed) = release("out", &[format!("{here}/docs/start/install.md#loading")]);
    assert!(succeeds, "{printed}");
    assert_runs("cd out && sha256sum --check SHA256SUMS && grep -c . SHA256SUMS | grep -qx 2");
    let notes = fs::read_to_string(path("out/NOTES.md")).unwrap();
    assert!(notes.contains("TB.TAKE") && !notes.contains("\n## "), "{notes}");
    let verify = "echo \"release $(cat key.pub)\" >signers && ssh-keygen -Y verify -f signers -I release \
        -n tokenbucket -s out/SHA256SUMS.sig <out/SHA256SUMS";
    assert_runs(verify);

    let dead = [
        "docs/start/install.md".to_owned(),
        format!("{here}/docs/nope.md"),
        format!("{here}/README.md#nope"),
    ];
    let (succeeds, printed) = release("dead", &dead);
    assert!(!succeeds, "{printed}");
    for link in dead {
        assert!(printed.contains(&format!("README.md: {link} leads nowhere")), "{printed}");
    }
    let (_, printed) = run(&mut make("release VERSION=9.9.9"));
    assert!(printed.contains("as Cargo.toml says, not 9.9.9"), "{printed}");
}

#[test]
fn a_change_is_tested_by_what_it_may_break() {
    let targets = |files: &[&str]| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (succeeds, printed) = run(Command::new(root.join(".ci/targets")).args(files));
        assert!(succeeds, "{printed}");
        printed.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let all = "lint test test-long examples clients test-gate test-replay";
    for (files, wanted) in [
        (&[][..], all),
        (&["README.md"], "lint test-pages"),
        (&["docs/operate/scaling.md", "gate/src/main.rs"], "lint test-pages test-gate"),
        (&["docs/how-to/login-limit.md"], "lint test-pages clients"),
        (&["clients/go/hold.go"], "lint examples clients"),
        (&["docs/operate/scaling.md", "core/src/lib.rs"], all),
        (&["Makefile"], all),
        (&["something/new"], all),
    ] {
        assert_eq!(targets(files), wanted, "{files:?}");
    }
}
