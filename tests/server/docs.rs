//! The documentation, executed.
//!
//! Every page (`README.md`, `CONTRIBUTING.md`, `RELEASING.md`, `SECURITY.md`, `CHANGELOG.md`, `docs/**/*.md`) is read as text, and what it shows is typed into a real
//! `redis-cli` (`REDIS_CLI` says another path) that is connected to a real server. A page may use:
//!
//! | on the page | meaning |
//! |---|---|
//! | a fenced block of language `console` | a transcript: prompts, and below each of them what `redis-cli` prints, to the letter |
//! | `127.0.0.1:6379> command` | something typed into `redis-cli`; the real port is another, `[1]` and `(TX)` may follow it |
//! | the same with a command `TB.B…` and nothing below | the call waits; its reply is below a later line that lets time pass |
//! | `$ redis-cli …` | a shell command, run in a folder with the page's scripts |
//! | `$ redis-cli … &` | a call of another client that waits; its reply is not shown |
//! | `(2 seconds later)` | time passes: a decimal number of microseconds, milliseconds, seconds, minutes, hours or days; `earlier` steps the clock back |
//! | two spaces and `# …` behind a line of a reply | a remark, not compared |
//! | `<!-- transcript: continued -->` above a block | the block goes on where the page's previous one ended |
//! | `<!-- transcript: cluster -->` above a block | the server is a cluster of one node that serves every slot |
//! | `<!-- transcript: loadmodule … -->` above a block | the module is loaded with these arguments |
//! | a fenced block of language `lua` | a script, that some transcript of the page runs; its first line is `-- name.lua` |
//! | a table under `## Errors` | error, cause, example; the example, one or more commands in code spans, ends in that error. An error that ends in `…` is compared up to there. |
//!
//! Every other block starts on a server of its own, in which nothing is stored. Its clock stands still between the
//! lines that let time pass, and shows 2026-01-01 00:00:00 UTC at the start, so that what depends on the time can
//! be printed as it is: 1767225600000000 microseconds.
//!
//! `UPDATE_EXPECT=1 cargo test --test server docs::` writes what the server says into the pages.

use super::command_table::table;
use super::info::counters;
use super::stories::passing_us;
use crate::common::calls::{Audience, COMMANDS};
use crate::common::clock::START_US;
use crate::common::engine::redis_cli;
use crate::common::stored::{buckets, Buckets};
use crate::common::{array, is_before, text, wait_until, Connection, Server};
use regex::{Captures, Regex};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use tempfile::TempDir;

/// The headings of a page of commands, in this order.
const SECTIONS: &str = "Syntax, Description, Arguments, Reply, Errors, Examples, See also";

/// When a transcript begins: [`START_US`] without its odd microseconds.
const TRANSCRIPT_START_US: i64 = START_US - START_US % 1_000_000;

/// A fenced block: of which kind it is according to the line above, its language, and its lines.
static BLOCK: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^(<!-- transcript: .* -->\n|)```(.*)\n((?s:.*?))^```$").unwrap());

/// What is typed behind a prompt of `redis-cli`.
static TYPED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^ *127\.0\.0\.1:[0-9]+(?:\[[0-9]+\])?(?:\(TX\))?> (.*)$").unwrap());

/// A link, and where it leads.
static LINK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\]\(([^)]+)\)").unwrap());

/// `(0.61s)`, which `redis-cli` prints below the reply of a slow machine.
static STOPWATCH: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\([0-9]+\.[0-9]+s\)$").unwrap());

#[test]
fn every_transcript_holds() {
    for page in pages() {
        expect_test::expect_file![&page.path].assert_eq(&page.play());
    }
}

#[test]
fn every_prompt_is_in_a_transcript_and_every_script_is_run() {
    for page in pages() {
        let typed: usize = page.blocks("console").map(|block| TYPED.find_iter(block).count()).sum();
        let prompts = TYPED.find_iter(&page.text).count();
        assert_eq!(prompts, typed, "{}: prompts outside transcripts", page.name());
        for name in page.blocks("lua").map(script_name) {
            let is_run = page.text.contains(&format!("\n$ redis-cli --eval {name} "));
            assert!(is_run, "{}: no transcript runs {name}", page.name());
        }
    }
}

/// All that a refused call must not change.
fn traces(client: &mut Connection) -> (Buckets, i64, [i64; 5]) {
    let [allowed, denied, _errors, granted, alive, bytes] = counters(client);
    (buckets(client), client.changes(), [allowed, denied, granted, alive, bytes])
}

/// The tables of errors are what the server says.
#[test]
fn every_error_is_what_its_example_gets() {
    for page in families().chain([errors_page()]) {
        for Row { error, example } in page.error_rows() {
            if is_before(7, 0) && example.concat().contains("CONFIG SET tokenbucket.") {
                // There settings are arguments of loadmodule alone.
                continue;
            }
            let mut session = Session::start("", &page);
            let mut client = session.server.connect();
            let (last, first) = example.split_last().expect("an example");
            first.iter().for_each(|command| drop(session.enter(command)));
            session.assert_refused(&mut client, last, &error);
        }
    }
}

#[test]
fn every_error_is_on_a_page() {
    let rows = families().chain([errors_page()]).flat_map(|page| page.error_rows());
    let shown: Vec<String> = rows.map(|row| row.error).collect();
    let texts = include_str!("../../core/src/error/mod.rs").split('"').skip(1).step_by(2);
    let rules = texts.filter(|text| ["ERR ", "OOM ", "WRONGTYPE "].iter().any(|code| text.starts_with(code)));
    let missing: Vec<_> = rules.filter(|rule| !shown.iter().any(|line| line.starts_with(*rule))).collect();
    assert!(missing.is_empty(), "on no page: {missing:?}");
}

/// Returns whether the lines that were printed are this error.
fn gets(printed: &[String], error: &str) -> bool {
    let printed = printed.join("\n");
    let told = printed.strip_prefix("(error) ").unwrap_or(&printed);
    error.strip_suffix('…').map_or(told == error, |start| told.starts_with(start))
}

#[test]
fn every_command_has_a_page_with_every_section() {
    let pages = command_pages();
    let known: BTreeSet<String> = COMMANDS.iter().map(|command| command.name.to_lowercase()).collect();
    assert_eq!(pages.keys().cloned().collect::<BTreeSet<_>>(), known, "pages (left) and commands (right)");
    let [readme, changelog] = ["README.md", "CHANGELOG.md"].map(|file| Page::read(root().join(file)).text);
    let access = Page::read(root().join("docs/reference/access.md"));
    for command in COMMANDS {
        let name = command.name.to_lowercase();
        let (page, span) = (&pages[&name], format!("`{}`", name.to_uppercase()));
        assert!(readme.contains(&span) || command.audience == Audience::Servers, "{name}: not in the README");
        assert!(changelog.contains(&span), "{name}: not in CHANGELOG.md");
        let headings: Vec<&str> = page.text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings.join(", "), SECTIONS, "{name}: its sections");
        for section in headings {
            assert!(!page.section(section).trim().is_empty(), "{name}: nothing under '{section}'");
        }
        let mut typed = TYPED.captures_iter(page.section("Examples")).map(|typed| typed[1].to_lowercase());
        assert!(typed.any(|typed| typed.split(' ').next() == Some(&*name)), "{name}: no example");
        let categories = match command.audience {
            Audience::Readers => "@read @fast @tokenbucket",
            Audience::Writers => "@write @fast @tokenbucket",
            Audience::WaitingWriters => "@write @blocking @tokenbucket",
            Audience::Operators => "@admin @dangerous",
            Audience::Servers => "@write @admin @dangerous",
        };
        let rows = || access.text.lines().filter(|line| line.contains(" | `@"));
        let row =
            rows().find(|row| row.contains(&span)).or(rows().find(|row| row.contains("decide at once")));
        assert!(row.unwrap().contains(&format!(" | `{categories}`")), "{name}: the ACL categories");
    }
}

/// The syntax that a wrong number of arguments shows is the page's.
#[test]
fn a_wrong_number_of_arguments_shows_the_syntax_of_the_page() {
    let (_server, mut client) = Server::start_with_client();
    for (name, page) in command_pages() {
        let syntax = page.syntax(&name);
        for count in [0, 9] {
            let call = [vec![name.as_str()], vec!["1"; count]].concat();
            let Err(line) = client.try_run(&call) else {
                assert_eq!(call, ["tb.top"], "only this may have no arguments");
                continue;
            };
            // Of nine, calls of several keys name the one that is wrong.
            if count == 0 || line.contains("wrong number") {
                let expected = format!("ERR wrong number of arguments for '{name}' command: {syntax}");
                assert_eq!(line, expected, "{call:?}");
            }
        }
    }
}

#[test]
fn the_pages_agree_with_command_docs() {
    if is_before(7, 0) {
        return; // It has no COMMAND DOCS.
    }
    let (_server, mut client) = Server::start_with_client();
    let index = Page::read(root().join("docs/reference/commands/README.md"));
    for (name, page) in command_pages() {
        let docs = table(&array(client.run(&["COMMAND", "DOCS", &name])).remove(1));
        let field = |name: &str| text(&docs[name]);
        let title = name.to_uppercase();
        let mut costs = index.section("Complexity").lines().filter(|row| row.contains(&format!("`{title}`")));
        assert!(
            costs.any(|row| row.starts_with(&format!("| {} | ", field("complexity")))),
            "{name}: complexity"
        );
        let since = format!("\nSince {}.\n", field("since"));
        assert!(page.section("Syntax").contains(&since), "{name}: not {since}");
        let heading = if page.titles()[0] == title { "" } else { &format!("#{}", name.replace('.', "")) };
        let file = page.path.file_name().unwrap().to_str().unwrap();
        let row = format!("| [{title}]({file}{heading}) | {} |", field("summary"));
        assert!(index.text.contains(&row), "the index of commands lacks {row}");
    }
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    for page in pages() {
        let targets = page.targets().into_iter().filter(|target| !page.reaches(target));
        dead.extend(targets.map(|target| format!("{}: {target}", page.name())));
    }
    assert!(dead.is_empty(), "these lead nowhere:\n{}", dead.join("\n"));
}

/// A decision in two minutes: README within what one reads at once, pages within what one pastes from.
#[test]
fn the_readme_and_the_pages_are_short() {
    let readme = Page::read(root().join("README.md"));
    let words = readme.text.split_whitespace().count();
    assert!(readme.text.lines().count() <= 120 && words <= 1000, "the README has {words} words");
    for page in find("docs/**/*.md") {
        let is_reference = page.path.starts_with(root().join("docs/reference"));
        assert!(is_reference || page.text.lines().count() <= 300, "{}: more than 300 lines", page.name());
    }
}

/// From the README by links, so that no page is written for nobody.
#[test]
fn every_page_can_be_reached_from_the_readme() {
    let mut reached = BTreeSet::new();
    let mut next = vec![root().join("README.md").canonicalize().unwrap()];
    while let Some(path) = next.pop() {
        if reached.insert(path.clone()) {
            let page = Page::read(path);
            let files =
                page.targets().into_iter().filter_map(|target| page.file(&target).canonicalize().ok());
            next.extend(files.filter(|file| file.extension().is_some_and(|extension| extension == "md")));
        }
    }
    let lost: Vec<_> = find("docs/**/*.md").filter(|page| !reached.contains(&page.path)).collect();
    assert!(lost.is_empty(), "no link leads to {:?}", lost.iter().map(|page| &page.path).collect::<Vec<_>>());
}

// ---- Pages --------------------------------------------------------------------------------------------------

struct Page {
    path: PathBuf,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn find(pattern: &str) -> impl Iterator<Item = Page> {
    let paths = glob::glob(root().join(pattern).to_str().unwrap()).unwrap();
    paths.map(|path| Page::read(path.unwrap()))
}

fn pages() -> impl Iterator<Item = Page> {
    ["README.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "CHANGELOG.md", "docs/**/*.md"]
        .into_iter()
        .flat_map(find)
}

/// The pages of commands, each of one kind.
fn families() -> impl Iterator<Item = Page> {
    find("docs/reference/commands/*.*.md")
}

/// The pages of commands, by the name of each command in lower case.
fn command_pages() -> BTreeMap<String, Page> {
    let mut pages = BTreeMap::new();
    for page in families() {
        for title in page.titles() {
            let other = pages.insert(title.to_lowercase(), Page::read(page.path.clone()));
            assert!(other.is_none(), "{title} has two pages");
        }
    }
    pages
}

fn errors_page() -> Page {
    Page::read(root().join("docs/reference/errors.md"))
}

/// A row of a table of errors: the error, and the commands of which the last ends in it.
struct Row {
    error: String,
    example: Vec<String>,
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, text }
    }

    fn name(&self) -> impl std::fmt::Display + '_ {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display()
    }

    /// What stands in the blocks of a language.
    fn blocks<'page>(&'page self, language: &'page str) -> impl Iterator<Item = &'page str> {
        let blocks = BLOCK.captures_iter(&self.text).map(|block| block.extract().1);
        blocks.filter_map(move |[_kind, of, content]| (of == language).then_some(content))
    }

    /// What stands under a heading of the second level.
    fn section(&self, heading: &str) -> &str {
        let behind = self.text.split_once(&format!("\n## {heading}\n")).map_or("", |(_, behind)| behind);
        behind.split("\n## ").next().unwrap_or_default()
    }

    /// The commands that the first line names.
    fn titles(&self) -> Vec<&str> {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ").split(", ").collect()
    }

    /// The line of a command under "Syntax".
    fn syntax(&self, name: &str) -> &str {
        let mut lines = self.section("Syntax").lines();
        let is_its = |line: &&str| line.split(' ').next().is_some_and(|word| word.eq_ignore_ascii_case(name));
        lines.find(is_its).unwrap_or_else(|| panic!("{}: no syntax of {name}", self.name()))
    }

    fn error_rows(&self) -> Vec<Row> {
        let rows = self.section("Errors").lines().filter(|line| line.starts_with("| `"));
        rows.map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            let [error, _cause, example] = cells.as_slice() else { panic!("{line}: not three cells") };
            Row { error: code_spans(error).concat(), example: code_spans(example) }
        })
        .collect()
    }

    /// The targets of links in its prose, but those to other sites.
    fn targets(&self) -> Vec<String> {
        let prose = BLOCK.replace_all(&self.text, "");
        let targets = LINK.captures_iter(&prose).map(|link| link[1].to_owned());
        targets.filter(|target| !target.contains("://")).collect()
    }

    /// The file that a link on this page leads to.
    fn file(&self, target: &str) -> PathBuf {
        match target.split('#').next() {
            None | Some("") => self.path.clone(),
            Some(file) => self.path.parent().unwrap().join(file),
        }
    }

    /// Returns whether a link on this page leads to a file, and to a heading of it if it names one.
    fn reaches(&self, target: &str) -> bool {
        let (file, anchor) = (self.file(target), target.split_once('#').map_or("", |(_, anchor)| anchor));
        file.exists() && (anchor.is_empty() || Self::read(file).has_anchor(anchor))
    }

    /// Returns whether a heading can be linked to by this name.
    fn has_anchor(&self, anchor: &str) -> bool {
        self.text.lines().filter(|line| line.starts_with('#')).any(|heading| {
            let title = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.collect::<String>().replace(' ', "-") == anchor
        })
    }

    /// The page as it has to be: its transcripts played on fresh servers, top to bottom.
    fn play(&self) -> String {
        let mut session = None;
        let play = |block: &Captures| {
            let (block, [kind, language, shown]) = block.extract();
            if language != "console" {
                return block.to_owned();
            }
            let kind = kind.trim_start_matches("<!-- transcript: ").trim_end_matches(" -->\n");
            let mut current = match (kind, session.take()) {
                ("continued", Some(session)) => session,
                _ => Session::start(kind, self),
            };
            let played = current.play(shown);
            session = Some(current);
            block.replace(shown, &played)
        };
        BLOCK.replace_all(&self.text, play).into_owned()
    }
}

fn code_spans(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// The file name in the first line of a script.
fn script_name(script: &str) -> &str {
    let name = script.strip_prefix("-- ").and_then(|name| name.split_whitespace().next());
    name.filter(|name| name.ends_with(".lua")).unwrap_or_else(|| panic!("a script without a name:\n{script}"))
}

// ---- Transcripts --------------------------------------------------------------------------------------------

const SHELL_PROMPT: &str = "$ ";

/// A server, a `redis-cli` that prints to us what it would print to a terminal, and a folder with the scripts of a page.
struct Session {
    /// It ends with what is typed into it.
    cli: Child,
    printed: Lines<BufReader<ChildStdout>>,
    folder: TempDir,
    server: Server,
    /// Whether a call waits, whose reply is not printed yet.
    is_waiting: bool,
}

impl Session {
    fn start(kind: &str, page: &Page) -> Self {
        let server = match (kind, kind.strip_prefix("loadmodule ")) {
            ("", _) => Server::with_clock(),
            ("cluster", _) => Server::builder().start_as_cluster(),
            (_, Some(arguments)) => {
                let arguments: Vec<&str> = arguments.split_whitespace().collect();
                Server::builder().controlled_clock().module_arguments(&arguments).start()
            }
            _ => panic!("{}: no kind of transcript, or nothing to continue: '{kind}'", page.name()),
        };
        server.clock().set_us(TRANSCRIPT_START_US);
        let folder = tempfile::tempdir().unwrap();
        for script in page.blocks("lua") {
            fs::write(folder.path().join(script_name(script)), script).unwrap();
        }
        let mut cli = Command::new(redis_cli())
            .args(["--no-raw", "-h", "127.0.0.1", "-p", &server.port().to_string()])
            .env("HOME", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{} cannot be run: {error}; say which with REDIS_CLI=path", redis_cli().display())
            });
        let printed = BufReader::new(cli.stdout.take().unwrap()).lines();
        Self { cli, printed, folder, server, is_waiting: false }
    }

    /// Types a command and returns the lines that are printed.
    ///
    /// The end of a reply cannot be seen, and a further command would be queued in a transaction. So something
    /// is typed of which `redis-cli` itself complains: a quotation that does not end.
    fn enter(&mut self, command: &str) -> Vec<String> {
        self.type_in(command);
        self.read_reply()
    }

    /// Types a command that must end in an error and change nothing.
    fn assert_refused(&mut self, client: &mut Connection, command: &str, error: &str) {
        let before = traces(client);
        let printed = self.enter(command);
        assert!(gets(&printed, error), "{command} printed {printed:?} and not {error}");
        assert_eq!(traces(client), before, "{command} has changed something");
    }

    fn type_in(&self, command: &str) {
        writeln!(self.cli.stdin.as_ref().unwrap(), "{command}\n\"").unwrap();
    }

    fn read_reply(&mut self) -> Vec<String> {
        const COMPLAINT: &str = "Invalid argument(s)";
        let printed = self.printed.by_ref().map(Result::unwrap);
        let mut lines: Vec<String> = printed.take_while(|line| line != COMPLAINT).collect();
        lines.retain(|line| !STOPWATCH.is_match(line));
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    /// Types a call that waits in the server.
    fn enter_waiting(&mut self, command: &str) {
        self.let_wait(|| self.type_in(command));
        self.is_waiting = true;
    }

    /// Sends a call that waits in the server.
    fn let_wait(&self, send: impl FnOnce()) {
        let mut client = self.server.connect();
        let before = client.waiting();
        send();
        wait_until("the call waits", || client.waiting() == before + 1);
    }

    /// The reply of the call that waits. The server's timers do not know that time has passed, and a write command
    /// serves without them.
    fn read_late_reply(&mut self) -> Vec<String> {
        self.server.connect().say("TB.GIVE another 1 1 0");
        self.is_waiting = false;
        self.read_reply()
    }

    /// Types what a transcript types, and returns it with what is printed.
    fn play(&mut self, transcript: &str) -> String {
        let is_typed =
            |line: &str| TYPED.is_match(line) || line.starts_with(SHELL_PROMPT) || passing_us(line).is_some();
        let lines: Vec<&str> = transcript.lines().collect();
        let steps = lines.chunk_by(|_, next| !is_typed(next));
        steps.flat_map(|step| self.step(step[0], &step[1..])).map(|line| line + "\n").collect()
    }

    /// A line that is typed, what is then printed, and of what was shown below it the remarks and empty lines.
    fn step(&mut self, typed: &str, shown: &[&str]) -> Vec<String> {
        if let Some(us) = passing_us(typed) {
            self.server.clock().advance_us(us);
        }
        let shows_nothing = shown.iter().all(|line| line.is_empty());
        let mut observer = typed.contains("TB.SETTLE ").then(|| self.server.connect());
        let waiting = observer.as_mut().map_or(0, Connection::waiting);
        let printed = match (TYPED.captures(typed), typed.strip_prefix(SHELL_PROMPT)) {
            (Some(command), _) if shows_nothing && command[1].starts_with("TB.B") => {
                self.enter_waiting(&command[1]);
                Vec::new()
            }
            (Some(command), _) => self.enter(&command[1]),
            (None, Some(command)) if command.ends_with('&') => {
                let silent = command.replace('&', "> /dev/null 2>&1 &");
                self.let_wait(|| drop(self.run_in_shell(&silent)));
                Vec::new()
            }
            (None, Some(command)) => self.run_in_shell(command),
            (None, None) if self.is_waiting && !shows_nothing => self.read_late_reply(),
            (None, None) => Vec::new(),
        };
        if let Some(observer) = observer.as_mut().filter(|_| waiting > 0) {
            // Perhaps in a later turn: a busy machine ends turns early.
            wait_until("a waiting call gets what is settled", || observer.waiting() < waiting);
        }
        let with_remarks = printed.iter().enumerate().map(|(place, line)| match shown.get(place) {
            Some(shown) if shown.split("  # ").next().map(str::trim_end) == Some(line.trim_end()) => *shown,
            _ => line.trim_end(),
        });
        let blank = shown.iter().rev().take_while(|line| line.is_empty());
        std::iter::once(typed).chain(with_remarks).chain(blank.copied()).map(ToOwned::to_owned).collect()
    }

    /// What a shell command prints in a terminal, if it calls `redis-cli` as people do who have only one server.
    fn run_in_shell(&self, command: &str) -> Vec<String> {
        let Some(arguments) = command.strip_prefix("redis-cli ") else {
            panic!("'{command}' calls something else than redis-cli: its block is no transcript")
        };
        let script = format!("\"$REDIS_CLI\" --no-raw -p \"$PORT\" {arguments}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(self.folder.path()).stdin(Stdio::null());
        shell.env("REDIS_CLI", redis_cli()).env("PORT", self.server.port().to_string());
        let output = shell.output().unwrap();
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        printed.lines().map(ToOwned::to_owned).collect()
    }
}
