//! limitador's file, beside limitador's own library: the same limits apply, the same keys are counted, the same calls pass.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use limitador::limit::{Context, Limit, Namespace};
use limitador::RateLimiter;
use tokenbucket_client::fake::Fake;
use tokenbucket_gate::counters::Counters;
use tokenbucket_gate::decide::Decider;
use tokenbucket_gate::limits::{File, Limits, Options};
use tokenbucket_gate::messages::{Code, Descriptor, Entry, Request};
use tokenbucket_gate::settings::Arguments;

type Call = Vec<BTreeMap<String, String>>;

/// A limiter of each kind under the same file.
struct Both {
    theirs: RateLimiter,
    ours: Decider,
    limits: Limits,
}

fn read(text: &str) -> Limits {
    let file = File { name: "limits.yaml".to_owned(), text: text.to_owned() };
    Limits::read(&[file], &Options::default()).unwrap_or_else(|mistake| panic!("{mistake}: {text}"))
}

impl Both {
    fn new(text: &str) -> Self {
        let theirs = RateLimiter::new(10_000);
        theirs.configure_with(serde_json::from_str::<Vec<Limit>>(text).expect("limits")).expect("memory");
        let policy = Arguments::read(["gate".into()]).expect("defaults").settings.policy;
        let ours = Decider::new(Fake::new().server(), policy, Arc::<Counters>::default());
        Self { theirs, ours, limits: read(text) }
    }

    /// Sends a call to both, and returns whether it passes.
    async fn ask(&self, call: &Call, hits: u32) -> bool {
        let namespace = Namespace::from("ns");
        let (context, request) = (context(call), request(call, hits));
        let is_limited = self.theirs.is_rate_limited(&namespace, &context, 1).expect("memory").limited;
        let checked = self.ours.check(Some(&self.limits), &request).await.expect("a decision");
        assert_eq!(is_limited, checked.overall_code() != Code::Ok, "check of {call:?}");
        let passes = !self
            .theirs
            .check_rate_limited_and_update(&namespace, &context, hits.into())
            .expect("memory")
            .limited;
        let decided = self.ours.decide(Some(&self.limits), &request).await.expect("a decision");
        assert_eq!(passes, decided.overall_code() == Code::Ok, "{call:?}");
        passes
    }

    /// Hits by the limit's size and the key: what theirs counted.
    fn counted(&self) -> BTreeMap<(u64, String), u64> {
        let counters = self.theirs.get_counters(&Namespace::from("ns")).expect("memory");
        let counted = |counter: &limitador::counter::Counter| {
            let hits = counter.max_value() - counter.remaining().expect("known");
            ((counter.max_value(), format!("{:?}", counter.set_variables())), hits)
        };
        counters.iter().map(counted).collect()
    }
}

fn context(call: &Call) -> Context<'static> {
    let mut context = Context::default();
    let entries = |entries: &BTreeMap<String, String>| entries.clone().into_iter().collect::<HashMap<_, _>>();
    context.list_binding("descriptors".to_owned(), call.iter().map(entries).collect());
    context
}

fn descriptors(call: &Call) -> Vec<Descriptor> {
    let entry = |(key, value): (&String, &String)| Entry { key: key.clone(), value: value.clone() };
    let descriptor = |entries: &BTreeMap<String, String>| Descriptor {
        entries: entries.iter().map(entry).collect(),
        ..Descriptor::default()
    };
    call.iter().map(descriptor).collect()
}

fn request(call: &Call, hits_addend: u32) -> Request {
    Request { domain: "ns".to_owned(), descriptors: descriptors(call), hits_addend }
}

fn call(entries: &[(&str, &str)]) -> Call {
    vec![entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()]
}

/// A limit without conditions needs no descriptor, and of equal limits the first applies.
#[tokio::test]
async fn calls_without_descriptors_and_equal_limits_are_as_in_limitador() {
    let limit = |size, name| serde_json::json!({"namespace": "ns", "max_value": size, "seconds": 3600, "name": name, "conditions": [], "variables": []});
    let both = Both::new(&serde_json::json!([limit(3, "first"), limit(5, "second")]).to_string());
    let mut passed = Vec::new();
    for _ in 0..6 {
        passed.push(both.ask(&Vec::new(), 1).await);
    }
    assert_eq!(passed, [true, true, true, false, false, false]);
    assert!(Both::new("[]").ask(&call(&[]), 1).await);
}

/// limitador takes the variable of a macro for a name that calls lack, so the limit never applies. Here it is a mistake.
#[test]
fn macros_with_a_variable_apply_nowhere() {
    for condition in ["descriptors.exists(d, d.x == '1')", "descriptors.all(d, has(d.x))"] {
        let text = serde_json::json!([{"namespace": "ns", "max_value": 1, "seconds": 1, "conditions": [condition], "variables": []}]);
        let limit = serde_json::from_value::<Vec<Limit>>(text.clone()).expect("a limit").remove(0);
        assert!(!limit.applies(&context(&call(&[("x", "1")]))), "{condition}");
        let file = File { name: "limits.yaml".to_owned(), text: text.to_string() };
        let mistake = Limits::read(&[file], &Options::default()).expect_err("a mistake").to_string();
        assert!(mistake.contains("no call has 'd'") && mistake.contains("variable of a macro"), "{mistake}");
    }
}

/// A generator of numbers that is the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn some<'a>(&mut self, all: &[&'a str]) -> Vec<&'a str> {
        all.iter().copied().filter(|_| self.below(4) == 0).collect()
    }
}

const CONDITIONS: [&str; 10] = [
    r#"descriptors[0]["limit.a__1"] == "1""#,
    r#"descriptors[0]["limit.b__2"] == "1""#,
    r#"descriptors[0]["method"] in ["GET", "POST"]"#,
    r#"has(descriptors[0].path) && descriptors[0].path.startsWith("/a")"#,
    r#"has(descriptors[0].path) && descriptors[0].path.matches("^/[ab]$")"#,
    r#"limit.name == "n1""#,
    "size(descriptors) == 1",
    "has(descriptors[0].user)",
    r#"descriptors[0]["user"] != "ada" || descriptors[0]["limit.a__1"] == "1""#,
    "has(descriptors[0].number) && int(descriptors[0].number) > 1",
];
const VARIABLES: [&str; 5] = [
    r#"descriptors[0]["user"]"#,
    "descriptors[0].method",
    "has(descriptors[0].number) ? int(descriptors[0].number) * 2 : 0u",
    r#""path" in descriptors[0] ? descriptors[0].path.startsWith("/a") : 1.5"#,
    "descriptors[0].path + 'x'",
];
const ENTRIES: [(&str, &[&str]); 6] = [
    ("limit.a__1", &["1", "1", "0"]),
    ("limit.b__2", &["1"]),
    ("method", &["GET", "PUT", "{x}"]),
    ("path", &["/a", "/b", "/a|b=c"]),
    ("user", &["ada", "bob", ""]),
    ("number", &["1", "2", "3"]),
];

/// A file of limits whose sizes all differ.
fn random_file(random: &mut Random) -> String {
    let mut limits = Vec::<serde_json::Value>::new();
    for number in 0..1 + random.below(6) {
        let (mut conditions, mut variables) = (random.some(&CONDITIONS), random.some(&VARIABLES));
        conditions.truncate(2);
        variables.truncate(2);
        let is_there = |limit: &serde_json::Value| {
            limit["conditions"] == serde_json::json!(conditions)
                && limit["variables"] == serde_json::json!(variables)
        };
        if limits.iter().any(is_there) {
            continue;
        }
        let mut limit = serde_json::json!({
            "namespace": "ns", "max_value": 3 + number + 7 * random.below(3), "seconds": 3600,
            "conditions": conditions, "variables": variables,
        });
        if random.below(2) == 0 {
            limit["name"] = serde_json::json!(format!("n{}", random.below(3)));
        }
        limits.push(limit);
    }
    serde_json::to_string(&limits).expect("JSON")
}

fn random_call(random: &mut Random) -> Call {
    let descriptor = |random: &mut Random| {
        let mut entries = BTreeMap::new();
        for (key, values) in ENTRIES {
            if random.below(4) > 0 {
                entries.insert(key.to_owned(), values[random.below(values.len())].to_owned());
            }
        }
        entries
    };
    (0..1 + random.below(5) / 4).map(|_| descriptor(random)).collect()
}

#[tokio::test]
async fn random_files_decide_as_in_limitador() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut passed, mut denied, mut applied) = (0, 0, 0);
    for _ in 0..20 {
        let text = random_file(&mut random);
        let both = Both::new(&text);
        let mut ours = BTreeMap::<(u64, String), u64>::new();
        let theirs: Vec<Limit> = serde_json::from_str(&text).expect("limits");
        for _ in 0..50 {
            let (call, hits) = (random_call(&mut random), 1 + random.below(2) as u32);
            let found =
                both.limits.find_all("ns", &descriptors(&call)).expect("a namespace").expect("no failure");
            let context = context(&call);
            let applies = |limit: &&Limit| {
                limit.applies(&context) && limit.resolve_variables(&context).expect("values").is_some()
            };
            let mut wanted: Vec<u64> = theirs.iter().filter(applies).map(Limit::max_value).collect();
            let mut sizes: Vec<u64> = found.iter().map(|one| one.rule.capacity as u64).collect();
            wanted.sort_unstable();
            sizes.sort_unstable();
            assert_eq!(sizes, wanted, "{text}: {call:?}");
            applied += sizes.len();
            if both.ask(&call, hits).await {
                passed += 1;
                for one in found {
                    *ours.entry((one.rule.capacity as u64, one.bucket)).or_default() += u64::from(hits);
                }
            } else {
                denied += 1;
            }
        }
        let counts = |counted: BTreeMap<(u64, String), u64>| {
            let mut counts: Vec<(u64, u64)> =
                counted.into_iter().map(|((size, _), hits)| (size, hits)).collect();
            counts.sort_unstable();
            counts
        };
        let theirs = counts(both.counted()).into_iter().filter(|(_, hits)| *hits > 0).collect::<Vec<_>>();
        assert_eq!(counts(ours), theirs, "{text}");
    }
    assert!(passed > 100 && denied > 100 && applied > 400, "{passed} {denied} {applied}");
}

#[test]
fn mistakes_name_their_lines() {
    let of = |rest: &str| format!("- namespace: ns\n  seconds: 60\n  max_value: 1\n  {rest}\n");
    for (text, mistake) in [
        (of("policy: x"), "4: config error, unknown key 'policy'"),
        (
            of("conditions: x"),
            "4: error loading config file: conditions must be a list of expressions, not 'x'",
        ),
        (of("conditions: ['a b']"), "4: 'a b' is no expression in CEL: "),
        (
            of("conditions: [\"auth.identity.userid == 'a'\"]"),
            "4: no call has 'auth': only descriptors and limit is known in conditions",
        ),
        (of("variables: [limit.name]"), "4: no call has 'limit': only descriptors is known in variables"),
        (
            "- namespace: ns\n  seconds: 3153600001\n  max_value: 1\n".to_owned(),
            "2: error loading config file: seconds must be a whole number from 1 to 3153600000, not '3153600001'",
        ),
        ("- namespace: ns\n  max_value: 1\n".to_owned(), "1: a limit must have seconds"),
        ("- seconds: 1\n  max_value: 1\n".to_owned(), "1: a limit must have a namespace"),
        (
            "- namespace: ns\n  seconds: 0\n  max_value: 1\n".to_owned(),
            "2: error loading config file: seconds must be a whole number from 1 to",
        ),
        (
            "- namespace: ns\n  seconds: 1\n  max_value: 1e30\n".to_owned(),
            "3: error loading config file: max_value must be a whole number from 0 to",
        ),
        ("- x\n".to_owned(), "1: error loading config file: a limit must be a mapping, not 'x'"),
    ] {
        let file = File { name: "limits.yaml".to_owned(), text };
        let found = Limits::read(&[file], &Options::default()).expect_err("a mistake").to_string();
        assert!(found.starts_with(&format!("limits.yaml:{mistake}")), "{found} is not {mistake}");
    }
    let domain = File { name: "ours.yaml".to_owned(), text: "domain: ns\n".to_owned() };
    let theirs = File { name: "limits.yaml".to_owned(), text: of("name: n") };
    for files in [[domain.clone(), theirs.clone()], [theirs, domain]] {
        assert!(Limits::read(&files, &Options::default()).is_err());
    }
}

/// Expressions of any size exhaust no stack, and take no time that grows with their depth.
#[test]
fn expressions_are_bounded() {
    let limit = |condition: &str| serde_json::json!([{"namespace": "ns", "max_value": 1, "seconds": 60, "conditions": [condition]}]);
    for refused in [
        "(".repeat(3_000) + "1" + &")".repeat(3_000),
        "[".repeat(33),
        "1+".repeat(600) + "1 == 1",
        "(! !".repeat(32) + "true" + &")".repeat(32),
        "(--".repeat(32) + "1" + &")".repeat(32) + " == 1",
    ] {
        let file = File { name: "limits.yaml".to_owned(), text: limit(&refused).to_string() };
        let mistake = Limits::read(&[file], &Options::default()).expect_err("a mistake");
        assert_eq!(
            mistake.to_string(),
            "limits.yaml:1: an expression has at most 1024 bytes, 32 brackets, and 8 of '!!' and '--'"
        );
    }
}

/// An expression that fails refuses the call: it must not pass without the limit.
#[test]
fn an_expression_that_fails_is_an_error() {
    let limits = read("[{namespace: ns, max_value: 1, seconds: 60, conditions: ['int(descriptors[0].n) > 1'], variables: []}]");
    let found = limits.find_all("ns", &descriptors(&call(&[("n", "x")]))).expect("a namespace");
    assert!(found.is_err_and(|error| error.starts_with("limits.yaml:1: ")));
}
