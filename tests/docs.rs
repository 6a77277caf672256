//! The documentation, executed.
//!
//! Every page, `README.md` and `docs/**/*.md`, is read as text, and what it shows is typed into a real `redis-cli`
//! (`REDIS_CLI` says another path) that is connected to a real server. A page may use:
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
//! `UPDATE_DOCS=1 cargo test --test docs` writes what the server says into the pages. It fails where it had to.

mod common;

use common::clock::START_US;
use common::exact::{number::exact, whole};
use common::server::is_before_7;
use common::{integers, text, wait_until, Connection, Server, PATIENCE};
use redis::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use tempfile::TempDir;

/// The headings of a command's page, in this order.
const SECTIONS: [&str; 9] = [
    "Syntax",
    "Description",
    "Arguments",
    "Reply",
    "Errors",
    "Complexity",
    "ACL categories",
    "Examples",
    "See also",
];

/// When a transcript begins: [`START_US`] without its odd microseconds.
const TRANSCRIPT_START_US: i64 = START_US - START_US % 1_000_000;

#[test]
fn every_transcript_holds() {
    let mut wrong = Vec::new();
    for page in pages() {
        let corrections = page.play();
        page.update(&corrections);
        wrong.extend(corrections.iter().map(|correction| correction.report(&page)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_prompt_is_in_a_transcript() {
    for page in pages() {
        let blocks = page.blocks();
        let transcripts: Vec<_> = blocks.iter().filter(|block| block.language == "console").collect();
        for (number, line) in page.lines.iter().enumerate() {
            let is_shown = transcripts.iter().any(|block| block.lines.contains(&number));
            let is_prompt = command_after_prompt(line.trim_start()).is_some();
            assert!(!is_prompt || is_shown, "{}: a prompt outside a console block", page.at(number));
        }
        for block in transcripts {
            let is_played = page.content(block).iter().any(|line| Input::read(line).is_some());
            assert!(is_played, "{}: a console block without a prompt", page.at(block.lines.start));
        }
    }
}

#[test]
fn every_script_is_run() {
    for page in pages() {
        for script in page.blocks().iter().filter(|block| block.language == "lua") {
            let at = page.at(script.lines.start);
            let name = page.script_name(script).unwrap_or_else(|| panic!("{at}: a script without a name"));
            let is_run = |line: &String| line.contains(&format!("$ redis-cli --eval {name} "));
            assert!(page.lines.iter().any(is_run), "{at}: no transcript runs {name}");
        }
    }
}

#[test]
fn every_error_is_what_its_example_gets() {
    for (name, page) in command_pages() {
        let rows = page.error_rows();
        assert!(!rows.is_empty(), "{name} has no errors, not even one of arity");
        for row in rows {
            let session = Session::start("", &page);
            let printed = row.commands.iter().fold(None, |_, command| Some(session.terminal.enter(command)));
            let printed = printed.unwrap_or_default().join("\n");
            let expected = format!("(error) {}", row.error);
            let holds = match expected.strip_suffix('…') {
                Some(start) => printed.starts_with(start),
                None => printed == expected,
            };
            assert!(holds, "{}: {:?} printed\n{printed}", row.at, row.commands);
        }
    }
}

#[test]
fn every_command_has_a_page_and_every_page_a_command() {
    let with_page: BTreeSet<String> = command_pages().into_keys().collect();
    let known: BTreeSet<String> = module_commands().into_keys().collect();
    assert!(known.contains("tb.take"), "the module has no commands: {known:?}");
    assert_eq!(with_page, known, "pages (left) and commands (right)");
}

#[test]
fn every_page_of_a_command_has_every_section() {
    for (name, page) in command_pages() {
        let at = page.path.display();
        assert_eq!(page.lines.first(), Some(&format!("# {}", name.to_uppercase())), "{at}: its title");
        let headings: Vec<&str> = page.lines.iter().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, SECTIONS, "{at}: its sections");
        for section in SECTIONS {
            let is_empty = page.section(section).iter().all(|line| line.trim().is_empty());
            assert!(!is_empty, "{at}: nothing under '{section}'");
        }
        let is_shown = |line: &String| {
            command_after_prompt(line).is_some_and(|typed| typed.to_lowercase().starts_with(&name))
        };
        assert!(page.section("Examples").iter().any(is_shown), "{at}: no example");
    }
}

#[test]
fn the_pages_agree_with_the_servers_command_table() {
    let commands = module_commands();
    // Before 7.2 no command of a module is in a category, before 7.4 in none of its module's own.
    let has_categories = commands.values().any(|command| !command.categories.is_empty());
    let has_own_category = Server::start().connect().try_run(&["ACL", "CAT", "tokenbucket"]).is_ok();
    for (name, page) in command_pages() {
        let (at, known) = (page.path.display(), &commands[&name]);
        if !is_before_7() {
            assert_eq!(page.arity(), known.arity, "{at}: the arity");
        }
        if has_categories {
            let mut on_page = page.categories();
            on_page.retain(|category| has_own_category || category != "@tokenbucket");
            assert_eq!(on_page, known.categories, "{at}: the ACL categories");
        }
    }
}

#[test]
fn the_pages_agree_with_command_docs() {
    let server = Server::start();
    let mut client = server.connect();
    let index = Page::read(root().join("docs/commands/README.md"));
    for (name, page) in command_pages() {
        let at = page.path.display();
        let row_start = format!("| [{}]({name}.md) | ", name.to_uppercase());
        let row = index.lines.iter().find(|line| line.starts_with(&row_start));
        let row = row.unwrap_or_else(|| panic!("the index of commands does not list {name}"));
        if is_before_7() {
            // It has no COMMAND DOCS.
            continue;
        }
        let docs = command_docs(&client.run(&["COMMAND", "DOCS", &name]));
        assert_eq!(page.section("Complexity").join(" ").trim(), docs["complexity"], "{at}");
        assert!(page.section("Syntax").contains(&format!("Since {}.", docs["since"])), "{at}: since when");
        assert_eq!(*row, format!("{row_start}{} |", docs["summary"]), "in the index of commands");
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

/// A fenced block: the lines between its fences.
struct Block {
    language: String,
    marker: String,
    lines: Range<usize>,
    indent: usize,
}

/// A row of a table of errors.
struct ErrorRow {
    at: String,
    error: String,
    commands: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page: `README.md` and what is under `docs`.
fn pages() -> Vec<Page> {
    let mut paths = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.into_iter().map(Page::read).collect()
}

/// The pages of commands, by the name of the command in lower case.
fn command_pages() -> BTreeMap<String, Page> {
    let folder = root().join("docs/commands");
    let of_commands =
        |page: &Page| page.path.parent() == Some(&folder) && page.path.file_stem().unwrap() != "README";
    let by_name = |page: Page| (page.path.file_stem().unwrap().to_str().unwrap().to_owned(), page);
    pages().into_iter().filter(of_commands).map(by_name).collect()
}

impl Block {
    fn unindented<'line>(&self, line: &'line str) -> &'line str {
        line.get(self.indent..).unwrap_or_default()
    }

    fn indented(&self, line: &str) -> String {
        format!("{}{line}", " ".repeat(self.indent))
    }
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

    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (number, line) in self.lines.iter().enumerate() {
            let fence = line.trim_start().strip_prefix("```");
            match (&mut open, fence) {
                (None, Some(language)) => {
                    open = Some(Block {
                        language: language.trim().to_owned(),
                        marker: self.marker_above(number),
                        lines: number + 1..number + 1,
                        indent: line.len() - line.trim_start().len(),
                    });
                }
                (Some(block), Some("")) => {
                    block.lines.end = number;
                    blocks.extend(open.take());
                }
                _ => {}
            }
        }
        assert!(open.is_none(), "{}: a block that does not end", self.path.display());
        blocks
    }

    /// The `…` of `<!-- transcript: … -->` above a line.
    fn marker_above(&self, number: usize) -> String {
        let above = self.lines[..number].iter().rev().find(|line| !line.trim().is_empty());
        let marker = above.and_then(|line| {
            line.trim().strip_prefix("<!-- transcript:").and_then(|rest| rest.strip_suffix("-->"))
        });
        marker.unwrap_or_default().trim().to_owned()
    }

    /// The lines of a block, without its indentation.
    fn content<'page>(&'page self, block: &Block) -> Vec<&'page str> {
        self.lines[block.lines.clone()].iter().map(|line| block.unindented(line)).collect()
    }

    /// The file name in the first line of a script.
    fn script_name(&self, block: &Block) -> Option<&str> {
        let name = self.lines.get(block.lines.start)?.trim_start().strip_prefix("-- ")?;
        name.split_whitespace().next().filter(|name| name.ends_with(".lua"))
    }

    /// The lines under a heading of the second level, blocks included.
    fn section(&self, heading: &str) -> &[String] {
        let title = format!("## {heading}");
        let Some(start) = self.lines.iter().position(|line| *line == title) else { return &[] };
        let body = &self.lines[start + 1..];
        let end = body.iter().position(|line| line.starts_with("## ")).unwrap_or(body.len());
        &body[..end]
    }

    fn error_rows(&self) -> Vec<ErrorRow> {
        let section = self.section("Errors");
        let rows = section.iter().filter(|line| line.starts_with("| `"));
        rows.map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            let [error, _, example] = cells.as_slice() else { panic!("{line}: not three cells") };
            ErrorRow {
                at: format!("{}: {error}", self.path.display()),
                error: code_spans(error).concat(),
                commands: code_spans(example),
            }
        })
        .collect()
    }

    /// The arity that the syntax tells: the number of words, negative if there may be more or fewer.
    fn arity(&self) -> i64 {
        let syntax = self.section("Syntax").iter().find(|line| line.starts_with(char::is_uppercase));
        let syntax = syntax.unwrap_or_else(|| panic!("{}: no syntax", self.path.display()));
        let required = syntax.split('[').next().unwrap().split_whitespace().count();
        let arity = i64::try_from(required).unwrap();
        if syntax.contains('[') {
            -arity
        } else {
            arity
        }
    }

    /// The ACL categories in the first paragraph of their section.
    fn categories(&self) -> BTreeSet<String> {
        let lines = self.section("ACL categories").iter().skip_while(|line| line.is_empty());
        let paragraph: Vec<_> = lines.take_while(|line| !line.is_empty()).cloned().collect();
        code_spans(&paragraph.join(" ")).into_iter().filter(|span| span.starts_with('@')).collect()
    }

    /// The targets of links within the project, and where they are.
    fn links(&self) -> Vec<(String, String)> {
        let blocks = self.blocks();
        let in_block = |number: &usize| blocks.iter().any(|block| block.lines.contains(number));
        let lines = self.lines.iter().enumerate().filter(|(number, _)| !in_block(number));
        lines
            .flat_map(|(number, line)| {
                let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
                targets.map(move |target| (self.at(number), target.to_owned()))
            })
            .filter(|(_, target)| !target.contains("://"))
            .collect()
    }

    /// Whether a link on this page leads to a file, and to a heading of it if it names one.
    fn reaches(&self, target: &str) -> bool {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = match file {
            "" => self.path.clone(),
            file => self.path.parent().unwrap().join(file),
        };
        file.exists() && (anchor.is_empty() || Self::read(file).anchors().contains(anchor))
    }

    /// What the page's headings can be linked by.
    fn anchors(&self) -> BTreeSet<String> {
        let headings = self.lines.iter().filter(|line| line.starts_with('#'));
        headings
            .map(|heading| {
                let title = heading.trim_start_matches('#').trim().to_lowercase();
                let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
                kept.collect::<String>().replace(' ', "-")
            })
            .collect()
    }
}

fn code_spans(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

// ---- Transcripts --------------------------------------------------------------------------------------------

/// What is typed.
#[derive(Clone, Debug)]
enum Input {
    /// Into `redis-cli`.
    Command(String),
    /// Into a shell.
    Shell(String),
}

/// A line of a transcript that does something, and the lines of the page that show what it prints.
enum Step {
    Wait(i64),
    Enter(Input, Range<usize>),
}

/// A reply that is not what the page says.
struct Correction {
    input: Input,
    lines: Range<usize>,
    printed: Vec<String>,
}

impl Input {
    fn read(line: &str) -> Option<Self> {
        let shell = line.strip_prefix("$ ").map(|command| Self::Shell(command.to_owned()));
        shell.or_else(|| command_after_prompt(line).map(|command| Self::Command(command.to_owned())))
    }
}

/// `TB.TAKE k 10 1` of `127.0.0.1:6379(TX)> TB.TAKE k 10 1`.
fn command_after_prompt(line: &str) -> Option<&str> {
    let (port, command) = line.strip_prefix("127.0.0.1:")?.split_once("> ")?;
    let port = port.strip_suffix("(TX)").unwrap_or(port);
    port.chars().all(|c| c.is_ascii_digit() || "[]".contains(c)).then_some(command)
}

/// The microseconds of `(2 seconds later)`, or, negative, of `(2 seconds earlier)`.
fn wait_us(line: &str) -> Option<i64> {
    let remark = line.trim().strip_prefix('(')?.strip_suffix(')')?;
    let (stretch, direction) = remark.rsplit_once(' ')?;
    let sign = match direction {
        "later" => 1,
        "earlier" => -1,
        _ => return None,
    };
    let (number, unit) = stretch.split_once(' ')?;
    let unit_us = match unit.strip_suffix('s').unwrap_or(unit) {
        "microsecond" => 1i64,
        "millisecond" => 1000,
        "second" => 1_000_000,
        "minute" => 60_000_000,
        "hour" => 3_600_000_000,
        "day" => 86_400_000_000,
        _ => return None,
    };
    let us = exact(number) * whole(sign * unit_us);
    Some(us.to_integer().try_into().expect("a wait that fits"))
}

impl Page {
    /// Plays the page's transcripts on fresh servers, top to bottom, and returns what does not hold.
    fn play(&self) -> Vec<Correction> {
        let mut corrections = Vec::new();
        let mut session = None;
        for block in self.blocks().iter().filter(|block| block.language == "console") {
            let current = match (block.marker.as_str(), session.take()) {
                ("continued", Some(session)) => session,
                ("continued", None) => panic!("{}: nothing to continue", self.at(block.lines.start)),
                (kind, _) => Session::start(kind, self),
            };
            for step in self.steps(block) {
                corrections.extend(self.play_step(&current, block, step));
            }
            session = Some(current);
        }
        corrections
    }

    fn steps(&self, block: &Block) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, line) in block.lines.clone().zip(self.content(block)) {
            if let Some(us) = wait_us(line) {
                steps.push(Step::Wait(us));
            } else if let Some(input) = Input::read(line) {
                steps.push(Step::Enter(input, number + 1..number + 1));
            } else if let Some(Step::Enter(_, reply)) = steps.last_mut() {
                reply.end = number + 1;
            } else {
                assert!(line.is_empty(), "{}: printed by what?", self.at(number));
            }
        }
        steps
    }

    fn play_step(&self, session: &Session, block: &Block, step: Step) -> Option<Correction> {
        let (input, mut lines) = match step {
            Step::Wait(us) => {
                session.server.clock().advance_us(us);
                return None;
            }
            Step::Enter(input, lines) => (input, lines),
        };
        let printed = match &input {
            Input::Command(command) => session.terminal.enter(command),
            Input::Shell(command) => session.run_in_shell(command),
        };
        while lines.end > lines.start && self.lines[lines.end - 1].trim().is_empty() {
            lines.end -= 1;
        }
        let shown: Vec<&str> = self.lines[lines.clone()].iter().map(|line| block.unindented(line)).collect();
        let holds = |(shown, printed): (&&str, &String)| without_remark(shown) == printed.trim_end();
        if shown.len() == printed.len() && shown.iter().zip(&printed).all(holds) {
            return None;
        }
        let with_remark = |(index, line): (usize, &String)| match shown.get(index) {
            Some(shown) if holds((shown, line)) => (*shown).to_owned(),
            _ => line.trim_end().to_owned(),
        };
        let printed = printed.iter().enumerate().map(with_remark).map(|line| block.indented(&line)).collect();
        Some(Correction { input, lines, printed })
    }

    /// Writes corrections into the page, if that was asked for.
    fn update(&self, corrections: &[Correction]) {
        if corrections.is_empty() || std::env::var_os("UPDATE_DOCS").is_none() {
            return;
        }
        let mut lines = self.lines.clone();
        for correction in corrections.iter().rev() {
            lines.splice(correction.lines.clone(), correction.printed.iter().cloned());
        }
        fs::write(&self.path, lines.join("\n") + "\n").unwrap();
    }
}

impl Correction {
    fn report(&self, page: &Page) -> String {
        let shown = page.lines[self.lines.clone()].join("\n");
        let printed = self.printed.join("\n");
        let (at, input) = (page.at(self.lines.start), &self.input);
        format!("{at}: {input:?}\n--- the page says\n{shown}\n--- the server says\n{printed}\n")
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

/// A server, somebody's terminal, and a folder with the scripts of a page.
struct Session {
    terminal: Terminal,
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
            _ => panic!("{}: no kind of transcript: '{kind}'", page.path.display()),
        };
        server.clock().set_us(TRANSCRIPT_START_US);
        let folder = tempfile::tempdir().unwrap();
        for block in page.blocks().iter().filter(|block| block.language == "lua") {
            if let Some(name) = page.script_name(block) {
                fs::write(folder.path().join(name), page.content(block).join("\n")).unwrap();
            }
        }
        Self { terminal: Terminal::open(server.port(), folder.path()), folder, server }
    }

    /// What a shell command prints in a terminal, if it calls `redis-cli` as people do who have only one server.
    fn run_in_shell(&self, command: &str) -> Vec<String> {
        let Some(arguments) = command.strip_prefix("redis-cli ") else {
            panic!("'{command}' calls something else than redis-cli: its block is no transcript")
        };
        let script = format!("\"$REDIS_CLI\" --no-raw -p \"$PORT\" {arguments}");
        let output = Command::new("sh")
            .args(["-c", &script])
            .env("REDIS_CLI", redis_cli())
            .env("PORT", self.server.port().to_string())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
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

// ---- redis-cli ----------------------------------------------------------------------------------------------

fn redis_cli() -> PathBuf {
    std::env::var_os("REDIS_CLI").map_or_else(|| PathBuf::from("redis-cli"), PathBuf::from)
}

/// A `redis-cli` that prints to us what it would print to a terminal.
struct Terminal {
    child: Child,
    stdin: ChildStdin,
    printed: Receiver<String>,
}

impl Terminal {
    fn open(port: u16, home: &Path) -> Self {
        let mut child = Command::new(redis_cli())
            .args(["--no-raw", "-h", "127.0.0.1", "-p", &port.to_string()])
            .env("HOME", home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{} cannot be run: {error}; say which with REDIS_CLI=path", redis_cli().display())
            });
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, printed) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n') {
                let line = String::from_utf8_lossy(&line.unwrap_or_default()).into_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, stdin, printed }
    }

    /// Types a command and returns the lines that are printed.
    ///
    /// The end of a reply cannot be seen, and a further command would be queued in a transaction. So something
    /// is typed of which `redis-cli` itself complains: a quotation that does not end.
    fn enter(&self, command: &str) -> Vec<String> {
        const COMPLAINT: &str = "Invalid argument(s)";
        (&self.stdin).write_all(format!("{command}\n\"\n").as_bytes()).unwrap();
        let next = || match self.printed.recv_timeout(PATIENCE) {
            Ok(line) => line.trim_end_matches('\r').to_owned(),
            Err(error) => panic!("'{command}' has no end: {error}"),
        };
        let mut lines: Vec<String> =
            std::iter::repeat_with(next).take_while(|line| line != COMPLAINT).collect();
        lines.retain(|line| !is_stopwatch(line));
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }
}

/// `(0.61s)`, which `redis-cli` prints below the reply of a slow machine.
fn is_stopwatch(line: &str) -> bool {
    let seconds = line.strip_prefix('(').and_then(|rest| rest.strip_suffix("s)"));
    seconds.is_some_and(|seconds| seconds.contains('.') && seconds.parse::<f64>().is_ok())
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- What the server says of the commands -------------------------------------------------------------------

struct KnownCommand {
    arity: i64,
    categories: BTreeSet<String>,
}

/// The commands that a server has with the module and lacks without it, by their names in lower case.
fn module_commands() -> BTreeMap<String, KnownCommand> {
    let bare = commands(&mut Server::builder().without_module().start().connect());
    let mut with_module = commands(&mut Server::start().connect());
    with_module.retain(|name, _| !bare.contains_key(name));
    with_module
}

fn commands(client: &mut Connection) -> BTreeMap<String, KnownCommand> {
    let Value::Array(table) = client.say("COMMAND") else { panic!("no command table") };
    let known = |entry: &Value| {
        let Value::Array(fields) = entry else { panic!("no command: {entry:?}") };
        let arity = integers(&Value::Array(vec![fields[1].clone()]))[0];
        let categories = match fields.get(6) {
            Some(Value::Array(names) | Value::Set(names)) => names.iter().map(text).collect(),
            other => panic!("no categories: {other:?}"),
        };
        (text(&fields[0]).to_lowercase(), KnownCommand { arity, categories })
    };
    table.iter().map(known).collect()
}

/// The fields of `COMMAND DOCS` that are text.
fn command_docs(reply: &Value) -> BTreeMap<String, String> {
    let Value::Array(command) = reply else { panic!("no docs: {reply:?}") };
    let [_, Value::Array(fields)] = command.as_slice() else { panic!("no docs: {reply:?}") };
    let pairs = fields.chunks_exact(2).filter(|pair| !matches!(pair[1], Value::Array(_)));
    pairs.map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}
