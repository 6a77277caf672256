//! The documentation, executed.
//!
//! Every page (`README.md`, `CONTRIBUTING.md`, `docs/**/*.md`) is read as text, and what it shows is typed into a real
//! `redis-cli` (`REDIS_CLI` says another path) that is connected to a real server. A page may use:
//!
//! | on the page | meaning |
//! |---|---|
//! | a fenced block of language `console` | a transcript: prompts, and below each of them what `redis-cli` prints, to the letter |
//! | `127.0.0.1:6379> command` | something typed into `redis-cli`; the real port is another, `[1]` and `(TX)` may follow it |
//! | `$ redis-cli …` | a shell command, run in a folder with the page's scripts |
//! | `(2 seconds later)` | time passes: a decimal number of microseconds, milliseconds, seconds, minutes, hours or days; `earlier` steps the clock back |
//! | two spaces and `# …` behind a line of a reply | a remark, not compared |
//! | `<!-- transcript: continued -->` above a block | the block goes on where the page's previous one ended |
//! | `<!-- transcript: cluster -->` above a block | the server is a cluster of one node that serves every slot |
//! | `<!-- transcript: loadmodule … -->` above a block | the module is loaded with these arguments |
//! | a fenced block of language `lua` | a script, that some transcript of the page runs; its first line is `-- name.lua` |
//! | a table under `## Errors` | error, cause, example; the example, one or more commands in code spans, ends in that error. An error that ends in `…` is compared up to there |
//!
//! Every other block starts on a server of its own, in which nothing is stored. Its clock stands still between the
//! lines that let time pass, and shows 2026-01-01 00:00:00 UTC at the start, so that what depends on the time can
//! be printed as it is: 1767225600000000 microseconds.
//!
//! `UPDATE_EXPECT=1 cargo test --test server docs::` writes what the server says into the pages.

use super::command_table::table;
use super::stories::passing_us;
use crate::common::calls::{Audience, COMMANDS};
use crate::common::clock::START_US;
use crate::common::engine::redis_cli;
use crate::common::stored::buckets;
use crate::common::{array, is_before, text, wait_until, Server};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// The headings of a command's page, in this order.
const SECTIONS: &str =
    "Syntax, Description, Arguments, Reply, Errors, Complexity, ACL categories, Examples, See also";

/// When a transcript begins: [`START_US`] without its odd microseconds.
const TRANSCRIPT_START_US: i64 = START_US - START_US % 1_000_000;

#[test]
fn every_transcript_holds() {
    for page in pages() {
        expect_test::expect_file![&page.path].assert_eq(&(page.play().join("\n") + "\n"));
    }
}

#[test]
fn every_prompt_is_in_a_transcript_and_every_script_is_run() {
    let is_prompt = |line: &&&str| command_after_prompt(line.trim_start()).is_some();
    for page in pages() {
        let lines: Vec<&str> = page.lines.iter().map(String::as_str).collect();
        let blocks = page.blocks();
        let typed =
            blocks.iter().filter(|block| block.language == "console").flat_map(|block| &block.content);
        let (prompts, typed) = (lines.iter().filter(is_prompt).count(), typed.filter(is_prompt).count());
        assert_eq!(prompts, typed, "{}: prompts outside transcripts", page.at(0));
        for script in blocks.iter().filter(|block| block.language == "lua") {
            let name = script_name(&script.content).expect("a script without a name");
            let is_run = |line: &&str| line.contains(&format!("$ redis-cli --eval {name} "));
            assert!(lines.iter().any(is_run), "{}: no transcript runs {name}", page.at(script.start));
        }
    }
}

/// The tables of errors are what the server says, and lack none of the errors that there are.
#[test]
fn every_error_is_what_its_example_gets() {
    let mut shown = BTreeSet::new();
    for (name, page) in command_pages() {
        let rows = page.error_rows();
        assert!(!rows.is_empty(), "{name} has no errors, not even one of arity");
        for (error, commands) in rows {
            if is_before(7, 0) && commands.concat().contains("CONFIG SET tokenbucket.") {
                // There settings are arguments of loadmodule alone.
                shown.insert(error);
                continue;
            }
            let mut session = Session::start("", &page);
            let mut client = session.server.connect();
            let (last, first) = commands.split_last().expect("an example");
            first.iter().for_each(|command| drop(session.enter(command)));
            let before = (buckets(&mut client), client.changes());
            let printed = session.enter(last).join("\n");
            let expected = format!("(error) {error}");
            let holds = match expected.strip_suffix('…') {
                Some(start) => printed.starts_with(start),
                None => printed == expected,
            };
            assert!(holds, "{name}: {error}: {commands:?} printed\n{printed}");
            let after = (buckets(&mut client), client.changes());
            assert_eq!(after, before, "{name}: {last} has changed something");
            shown.insert(error.trim_end_matches(" for …").to_owned());
        }
    }
    let texts =
        include_str!("../../src/error.rs").split("c\"").skip(1).filter_map(|rest| rest.split('"').next());
    let missing: Vec<_> = texts.filter(|text| !shown.contains(*text)).collect();
    assert!(missing.is_empty(), "on no page: {missing:?}");
}

#[test]
fn every_command_has_a_page_with_every_section() {
    let pages = command_pages();
    let known: BTreeSet<String> = COMMANDS.iter().map(|command| command.name.to_lowercase()).collect();
    assert_eq!(pages.keys().cloned().collect::<BTreeSet<_>>(), known, "pages (left) and commands (right)");
    for command in COMMANDS {
        let name = command.name.to_lowercase();
        let page = &pages[&name];
        let at = page.at(0);
        assert_eq!(page.lines.first(), Some(&format!("# {}", name.to_uppercase())), "{at}: its title");
        let headings: Vec<&str> = page.lines.iter().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings.join(", "), SECTIONS, "{at}: its sections");
        for section in headings {
            let is_empty = page.section(section).iter().all(|line| line.trim().is_empty());
            assert!(!is_empty, "{at}: nothing under '{section}'");
        }
        let is_shown = |line: &String| {
            command_after_prompt(line).is_some_and(|typed| typed.to_lowercase().starts_with(&name))
        };
        assert!(page.section("Examples").iter().any(is_shown), "{at}: no example");
        assert_eq!(page.arity(), command.arity, "{at}: the arity");
        let categories: &[&str] = match command.audience {
            Audience::Readers => &["@read", "@fast", "@tokenbucket"],
            Audience::Writers => &["@write", "@fast", "@tokenbucket"],
            Audience::Operators => &["@admin", "@dangerous"],
            Audience::Servers => &["@write", "@admin", "@dangerous"],
        };
        assert_eq!(page.categories(), categories, "{at}: the ACL categories");
    }
}

#[test]
fn the_pages_agree_with_command_docs() {
    if is_before(7, 0) {
        return; // It has no COMMAND DOCS.
    }
    let server = Server::start();
    let mut client = server.connect();
    let index = Page::read(root().join("docs/commands/README.md"));
    for (name, page) in command_pages() {
        let docs = table(&array(client.run(&["COMMAND", "DOCS", &name])).remove(1));
        let field = |name: &str| text(&docs[name]);
        let at = page.at(0);
        assert_eq!(page.section("Complexity").join(" ").trim(), field("complexity"), "{at}");
        assert!(page.section("Syntax").contains(&format!("Since {}.", field("since"))), "{at}: since when");
        let row = format!("| [{}]({name}.md) | {} |", name.to_uppercase(), field("summary"));
        assert!(index.lines.contains(&row), "the index of commands lacks {row}");
    }
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    for page in pages() {
        let links = page.links().into_iter().filter(|(_, target)| !page.reaches(target));
        dead.extend(links.map(|(at, target)| format!("{at}: {target}")));
    }
    assert!(dead.is_empty(), "these lead nowhere:\n{}", dead.join("\n"));
}

// ---- Pages --------------------------------------------------------------------------------------------------

/// A page as lines of text, counted from 0.
struct Page {
    path: PathBuf,
    lines: Vec<String>,
}

/// A fenced block.
struct Block<'page> {
    language: &'page str,
    /// Its first line on the page.
    start: usize,
    indent: usize,
    /// Its lines, without the indentation.
    content: Vec<&'page str>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn find(pattern: &str) -> impl Iterator<Item = Page> {
    let paths = glob::glob(root().join(pattern).to_str().unwrap()).unwrap();
    paths.map(|path| Page::read(path.unwrap()))
}

fn pages() -> impl Iterator<Item = Page> {
    ["README.md", "CONTRIBUTING.md", "docs/**/*.md"].into_iter().flat_map(find)
}

/// The pages of commands, by the name of the command in lower case.
fn command_pages() -> BTreeMap<String, Page> {
    let by_name = |page: Page| (page.path.file_stem().unwrap().to_str().unwrap().to_owned(), page);
    find("docs/commands/*.*.md").map(by_name).collect()
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let content = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, lines: content.lines().map(ToOwned::to_owned).collect() }
    }

    /// Where a line is, for people.
    fn at(&self, line: usize) -> String {
        let path = self.path.strip_prefix(root()).unwrap_or(&self.path);
        format!("{}:{}", path.display(), line + 1)
    }

    fn blocks(&self) -> Vec<Block<'_>> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut is_open = false;
        for (number, line) in self.lines.iter().enumerate() {
            match (blocks.last_mut().filter(|_| is_open), fence(line)) {
                (None, Some(language)) => {
                    is_open = true;
                    let indent = line.len() - line.trim_start().len();
                    blocks.push(Block { language, start: number + 1, indent, content: Vec::new() });
                }
                (Some(_), Some("")) => is_open = false,
                (Some(block), _) => block.content.push(line.get(block.indent..).unwrap_or_default()),
                (None, None) => {}
            }
        }
        assert!(!is_open, "{}: a block that does not end", self.path.display());
        blocks
    }

    /// The lines under a heading of the second level, blocks included.
    fn section(&self, heading: &str) -> &[String] {
        let title = format!("## {heading}");
        let Some(start) = self.lines.iter().position(|line| *line == title) else { return &[] };
        let body = &self.lines[start + 1..];
        let end = body.iter().position(|line| line.starts_with("## ")).unwrap_or(body.len());
        &body[..end]
    }

    /// The errors, and the commands of which the last ends in it.
    fn error_rows(&self) -> Vec<(String, Vec<String>)> {
        let rows = self.section("Errors").iter().filter(|line| line.starts_with("| `"));
        rows.map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            let [error, _, example] = cells.as_slice() else { panic!("{line}: not three cells") };
            (code_spans(error).concat(), code_spans(example))
        })
        .collect()
    }

    /// The arity that the syntax tells: the number of words, negative if there may be more or fewer.
    fn arity(&self) -> i64 {
        let syntax = self.section("Syntax").iter().find(|line| line.starts_with(char::is_uppercase));
        let syntax = syntax.unwrap_or_else(|| panic!("{}: no syntax", self.path.display()));
        let required = syntax.split('[').next().unwrap().split_whitespace().count() as i64;
        if syntax.contains('[') {
            -required
        } else {
            required
        }
    }

    /// The ACL categories in the first paragraph of their section.
    fn categories(&self) -> Vec<String> {
        let lines = self.section("ACL categories").iter().skip_while(|line| line.is_empty());
        let paragraph: Vec<_> = lines.take_while(|line| !line.is_empty()).cloned().collect();
        code_spans(&paragraph.join(" "))
    }

    /// The targets of links within the project, and where they are.
    fn links(&self) -> Vec<(String, String)> {
        let mut in_block = false;
        let mut links = Vec::new();
        for (number, line) in self.lines.iter().enumerate() {
            in_block ^= fence(line).is_some();
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            let targets = targets.filter(|target| !in_block && !target.contains("://"));
            links.extend(targets.map(|target| (self.at(number), target.to_owned())));
        }
        links
    }

    /// Whether a link on this page leads to a file, and to a heading of it if it names one.
    fn reaches(&self, target: &str) -> bool {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = match file {
            "" => self.path.clone(),
            file => self.path.parent().unwrap().join(file),
        };
        file.exists() && (anchor.is_empty() || Self::read(file).has_anchor(anchor))
    }

    /// Whether a heading can be linked to by this name.
    fn has_anchor(&self, anchor: &str) -> bool {
        self.lines.iter().filter(|line| line.starts_with('#')).any(|heading| {
            let title = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.collect::<String>().replace(' ', "-") == anchor
        })
    }
}

/// The language behind a fence, if a line is one.
fn fence(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("```").map(str::trim)
}

fn code_spans(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// The file name in the first line of a script.
fn script_name<'a>(script: &[&'a str]) -> Option<&'a str> {
    let name = script.first()?.strip_prefix("-- ")?;
    name.split_whitespace().next().filter(|name| name.ends_with(".lua"))
}

// ---- Transcripts --------------------------------------------------------------------------------------------

const SHELL_PROMPT: &str = "$ ";

/// `TB.TAKE k 10 1` of `127.0.0.1:6379(TX)> TB.TAKE k 10 1`.
fn command_after_prompt(line: &str) -> Option<&str> {
    let (port, command) = line.strip_prefix("127.0.0.1:")?.split_once("> ")?;
    let port = port.strip_suffix("(TX)").unwrap_or(port);
    port.chars().all(|c| c.is_ascii_digit() || "[]".contains(c)).then_some(command)
}

impl Page {
    /// The page as it has to be: its transcripts played on fresh servers, top to bottom.
    fn play(&self) -> Vec<String> {
        let blocks = self.blocks();
        let mut played = Vec::new();
        let mut session = None;
        for block in blocks.iter().filter(|block| block.language == "console") {
            let mut current = match (self.marker_above(block), session.take()) {
                ("continued", Some(session)) => session,
                (kind, _) => Session::start(kind, self),
            };
            played.push((block, current.play(&block.content)));
            session = Some(current);
        }
        let mut lines = self.lines.clone();
        for (block, played) in played.into_iter().rev() {
            let indent = " ".repeat(block.indent);
            let played = played.iter().map(|line| format!("{indent}{line}").trim_end().to_owned());
            lines.splice(block.start..block.start + block.content.len(), played);
        }
        lines
    }

    /// The `…` of `<!-- transcript: … -->` above a block.
    fn marker_above(&self, block: &Block) -> &str {
        let above = self.lines[..block.start - 1].iter().rev().find(|line| !line.trim().is_empty());
        let words = above.and_then(|line| line.trim().strip_prefix("<!-- transcript:"));
        words.and_then(|words| words.strip_suffix("-->")).unwrap_or_default().trim()
    }
}

/// A line of a reply without the remark behind it.
fn without_remark(line: &str) -> &str {
    let line = match line.find("  # ") {
        Some(remark) if !line[..remark].trim().is_empty() => &line[..remark],
        _ => line,
    };
    line.trim_end()
}

/// A server, a `redis-cli` that prints to us what it would print to a terminal, and a folder with the scripts of a page.
struct Session {
    /// It ends with what is typed into it.
    cli: Child,
    printed: Lines<BufReader<ChildStdout>>,
    folder: TempDir,
    server: Server,
}

impl Session {
    fn start(kind: &str, page: &Page) -> Self {
        let server = match (kind, kind.strip_prefix("loadmodule ")) {
            ("", _) => Server::with_clock(),
            ("cluster", _) => cluster_of_one(),
            (_, Some(arguments)) => {
                let arguments: Vec<&str> = arguments.split_whitespace().collect();
                Server::builder().controlled_clock().module_arguments(&arguments).start()
            }
            _ => panic!("{}: no kind of transcript, or nothing to continue: '{kind}'", page.path.display()),
        };
        server.clock().set_us(TRANSCRIPT_START_US);
        let folder = tempfile::tempdir().unwrap();
        for script in page.blocks().iter().filter(|block| block.language == "lua") {
            if let Some(name) = script_name(&script.content) {
                fs::write(folder.path().join(name), script.content.join("\n")).unwrap();
            }
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
        Self { cli, printed, folder, server }
    }

    /// Types a command and returns the lines that are printed.
    ///
    /// The end of a reply cannot be seen, and a further command would be queued in a transaction. So something
    /// is typed of which `redis-cli` itself complains: a quotation that does not end.
    fn enter(&mut self, command: &str) -> Vec<String> {
        const COMPLAINT: &str = "Invalid argument(s)";
        writeln!(self.cli.stdin.as_mut().unwrap(), "{command}\n\"").unwrap();
        let printed = self.printed.by_ref().map(Result::unwrap);
        let mut lines: Vec<String> = printed.take_while(|line| line != COMPLAINT).collect();
        lines.retain(|line| !is_stopwatch(line));
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    /// Types what a transcript types, and returns it with what is printed.
    fn play(&mut self, transcript: &[&str]) -> Vec<String> {
        let is_typed = |line: &str| {
            let is_command = line.starts_with(SHELL_PROMPT) || command_after_prompt(line).is_some();
            is_command || passing_us(line).is_some()
        };
        let mut played = Vec::new();
        let mut rest = transcript;
        while let Some((line, behind)) = rest.split_first() {
            played.push((*line).to_owned());
            let shown_len = behind.iter().position(|line| is_typed(line)).unwrap_or(behind.len());
            let (shown, next) = behind.split_at(shown_len);
            rest = next;
            if let Some(us) = passing_us(line) {
                self.server.clock().advance_us(us);
            }
            let printed = match (command_after_prompt(line), line.strip_prefix(SHELL_PROMPT)) {
                (Some(command), _) => self.enter(command),
                (None, Some(command)) => self.run_in_shell(command),
                (None, None) => Vec::new(),
            };
            let with_remark = |(place, line): (usize, &String)| match shown.get(place) {
                Some(shown) if without_remark(shown) == line.trim_end() => (*shown).to_owned(),
                _ => line.clone(),
            };
            played.extend(printed.iter().enumerate().map(with_remark));
            let blank = shown.iter().rev().take_while(|line| line.trim().is_empty()).count();
            played.extend(std::iter::repeat_n(String::new(), blank));
        }
        played
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

fn cluster_of_one() -> Server {
    const SLOTS: u32 = 16_384;
    let server = Server::builder().controlled_clock().option("cluster-enabled", "yes").start();
    let mut client = server.connect();
    let slots: Vec<String> = (0..SLOTS).map(|slot| slot.to_string()).collect();
    client.say(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
    wait_until("the cluster is up", || {
        // It waits for other nodes, by the clock that we control.
        server.clock().advance_ms(100);
        text(&client.say("CLUSTER INFO")).contains("cluster_state:ok")
    });
    server
}

/// `(0.61s)`, which `redis-cli` prints below the reply of a slow machine.
fn is_stopwatch(line: &str) -> bool {
    let seconds = line.strip_prefix('(').and_then(|rest| rest.strip_suffix("s)"));
    seconds.is_some_and(|seconds| seconds.contains('.') && seconds.parse::<f64>().is_ok())
}
