//! Reads limitador's file of limits, whose conditions and variables are expressions in CEL.
//!
//! Kuadrant's gateways put the entries of all limits that match into one descriptor, so a call is decided under every limit
//! whose conditions hold. limitador's own library is the reference of what applies.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use cel::objects::Map;
use cel::{Context, ExecutionError, Program, Value};

use super::file::{Fields, Kind, Reader};
use super::name;
use super::rate;
use super::rule::{Matched, Rule};
use super::yaml::{shown, Data, Meaning, Node};
use super::Limits;
use crate::messages::{CurrentLimit, Descriptor};

/// Longer and more deeply nested expressions could exhaust the stack.
const MOST_BYTES: usize = 1024;
const MOST_BRACKETS: usize = 32;
/// Behind an even number of `!` or `-` the crate reads what follows twice: nested ones take exponential time.
const MOST_DOUBLED: usize = 8;

/// The functions of CEL, shared by all calls.
static FUNCTIONS: LazyLock<Context<'static>> = LazyLock::new(Context::default);

/// The limits of one namespace.
#[derive(Debug)]
pub(super) struct Namespace {
    /// As names of buckets begin.
    encoded: String,
    limits: Vec<Limit>,
}

#[derive(Debug)]
struct Limit {
    rule: Arc<Rule>,
    /// The name of its metrics.
    path: String,
    /// A hash of what makes it another limit than others, as in limitador: `seconds`, `conditions` and `variables`.
    hash: String,
    /// File and line.
    origin: String,
    /// What expressions call `limit`.
    about: Value,
    conditions: Vec<Program>,
    /// By their sources, in the order of limitador.
    variables: BTreeMap<String, Program>,
}

const LIMIT: Kind = Kind {
    name: "a limit",
    keys: &["namespace", "max_value", "seconds", "name", "id", "conditions", "variables"],
};

/// The result of an expression, or the text of its error.
type Evaluated<T> = Result<Option<T>, String>;

impl Namespace {
    /// Returns every limit that applies to the descriptors; `hash_tag_key` is the source of a variable.
    ///
    /// # Errors
    ///
    /// An expression failed, other than by a key that is not there: which, and why.
    pub(super) fn find(
        &self,
        descriptors: &[Descriptor],
        hash_tag_key: Option<&str>,
    ) -> Result<Vec<Matched>, String> {
        let mut context = FUNCTIONS.new_inner_scope();
        let entries = |descriptor: &Descriptor| {
            let entries = descriptor.entries.iter().map(|entry| (entry.key.clone(), entry.value.clone()));
            Value::Map(Map::from(entries.collect::<HashMap<_, _>>()))
        };
        let descriptors: Vec<Value> = descriptors.iter().map(entries).collect();
        context.add_variable_from_value("descriptors", Value::List(descriptors.into()));
        let found = self.limits.iter().map(|limit| limit.find(&self.encoded, &context, hash_tag_key));
        found.filter_map(Result::transpose).collect()
    }

    /// Visits all limits with their paths.
    pub(super) fn each_rule(&self, visit: &mut impl FnMut(&str, &Rule)) {
        self.limits.iter().for_each(|limit| visit(&limit.path, &limit.rule));
    }
}

impl Limit {
    fn find(&self, encoded: &str, call: &Context<'_>, hash_tag_key: Option<&str>) -> Evaluated<Matched> {
        let failed = |error: String| format!("{}: {error}", self.origin);
        let mut context = call.new_inner_scope();
        context.add_variable_from_value("limit", self.about.clone());
        for condition in &self.conditions {
            match evaluated(condition, &context).map_err(failed)? {
                Some(Value::Bool(true)) => {}
                None | Some(Value::Bool(false)) => return Ok(None),
                Some(_) => return Err(failed("a condition is neither true nor false".to_owned())),
            }
        }
        let mut entries = vec![("limit", self.hash.clone())];
        for (source, variable) in &self.variables {
            let Some(value) = evaluated(variable, call).map_err(failed)? else { return Ok(None) };
            entries.push((source, text(&value).map_err(failed)?));
        }
        let tagged = hash_tag_key.and_then(|key| entries.iter().position(|(source, _)| *source == key));
        // So limits on the same variable share a slot.
        let tagged = tagged.unwrap_or(usize::from(entries.len() > 1));
        let pairs = entries.iter().map(|(key, value)| (*key, value.as_str()));
        let bucket = name::bucket(encoded, pairs, tagged, "");
        Ok(Some(Matched { rule: Arc::clone(&self.rule), bucket, metric: self.path.clone() }))
    }
}

/// Returns the value of an expression; `None` if it asks for a key that is not there.
fn evaluated(program: &Program, context: &Context<'_>) -> Evaluated<Value> {
    match program.execute(context) {
        Ok(value) => Ok(Some(value)),
        Err(ExecutionError::NoSuchKey(_)) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the value of a variable as it names a bucket.
fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::Int(number) => Ok(number.to_string()),
        Value::UInt(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Bool(truth) => Ok(truth.to_string()),
        Value::String(text) => Ok(text.to_string()),
        Value::Null => Ok("null".to_owned()),
        _ => Err("a variable is no text, number or boolean".to_owned()),
    }
}

impl Reader {
    /// Reads the list of limits that such a file is.
    pub(super) fn limits(&mut self, items: &[Node<'_>], limits: &mut Limits) {
        for item in items {
            if matches!(item.data, Data::Map(_)) {
                let fields = self.fields(item, LIMIT);
                self.limit(&fields, limits);
            } else {
                self.wrong_type("a limit", "a mapping", item);
            }
        }
    }

    fn limit(&mut self, fields: &Fields<'_, '_>, limits: &mut Limits) {
        let namespace = self.text(fields, "namespace");
        if namespace.is_empty() {
            self.fault(fields.line, "a limit must have a namespace");
        }
        if let Some(domain) = limits.domains.get(&namespace) {
            let problem = format!("namespace '{}' is the domain at {}", shown(&namespace), domain.origin);
            self.fault(fields.line_of("namespace"), problem);
        }
        let [name, id] = ["name", "id"].map(|key| self.text(fields, key));
        let conditions = self.expressions(fields, "conditions", &["descriptors", "limit"]);
        let variables = self.expressions(fields, "variables", &["descriptors"]);
        let Some((mut plain, seconds)) = self.window(fields) else { return };
        plain.current.name.clone_from(&name);
        let sources = |all: &BTreeMap<String, Program>| all.keys().cloned().collect::<Vec<_>>();
        let identity = format!("{seconds} {:?} {:?}", sources(&conditions), sources(&variables));
        let hash = name::short_hash(&identity);
        let called = [&name, &id, &hash].into_iter().find(|text| !text.is_empty()).unwrap_or(&hash);
        let path = format!("{namespace}.{called}");
        let value = |text: &str| match text {
            "" => Value::Null,
            text => Value::String(Arc::new(text.to_owned())),
        };
        let about = HashMap::from([("name", value(&name)), ("id", value(&id))]);
        let limit = Limit {
            rule: Arc::new(Rule { name, ..plain }),
            path,
            hash,
            origin: self.origin(fields.line),
            about: Value::Map(Map::from(about)),
            conditions: conditions.into_values().collect(),
            variables,
        };
        let of_namespace = limits.namespaces.entry(namespace).or_insert_with_key(|namespace| {
            let mut encoded = String::new();
            name::encode(namespace, &mut encoded);
            Namespace { encoded, limits: Vec::new() }
        });
        // As in limitador: operators write equal limits of several policies.
        if of_namespace.limits.iter().all(|other| other.hash != limit.hash) {
            of_namespace.limits.push(limit);
        }
    }

    /// Returns the bucket, and the seconds of the window that it stands for.
    fn window(&mut self, fields: &Fields<'_, '_>) -> Option<(Rule, u64)> {
        let most = self.number(fields, "max_value", 0, 1_000_000_000_000)?;
        let seconds = self.number(fields, "seconds", 1, 100 * 365 * 86_400)?;
        if most == 0 {
            let unit_ms = seconds.saturating_mul(1000);
            return Some((Rule::plain(rate::nothing().ok()?, CurrentLimit::default(), unit_ms, 0), seconds));
        }
        let rule = rate::of_rate(&format!("{most}/{seconds}s"), None);
        let rule = rule.map_err(|error| self.fault(fields.line_of("max_value"), error.to_string()));
        Some((rule.ok()?, seconds))
    }

    fn number(&mut self, fields: &Fields<'_, '_>, key: &str, least: u64, most: u64) -> Option<u64> {
        if fields.get(key).is_none() {
            self.fault(fields.line, format!("a limit must have {key}"));
        }
        let wanted = format!("a whole number from {least} to {most}");
        self.scalar(fields, key, &wanted, |scalar| {
            let number = scalar.text.parse().ok().filter(|number| (least..=most).contains(number));
            number.filter(|_| matches!(scalar.meaning(), Meaning::Number(_)))
        })
    }

    /// Returns expressions by their sources. `known` are the names that calls have.
    fn expressions(
        &mut self,
        fields: &Fields<'_, '_>,
        key: &str,
        known: &[&str],
    ) -> BTreeMap<String, Program> {
        let mut all = BTreeMap::new();
        let Some(node) = fields.get(key) else { return all };
        let Data::List(items) = &node.data else {
            self.wrong_type(key, "a list of expressions", node);
            return all;
        };
        for item in items {
            let Data::Scalar(scalar) = &item.data else {
                self.wrong_type(key, "a list of expressions", item);
                continue;
            };
            match compiled(&scalar.text, key, known) {
                Ok(program) => _ = all.insert(scalar.text.to_string(), program),
                Err(problem) => self.fault(item.line, problem),
            }
        }
        all
    }
}

fn compiled(source: &str, key: &str, known: &[&str]) -> Result<Program, String> {
    let without_blanks: String = source.split_whitespace().collect();
    let doubled = without_blanks.matches("!!").count() + without_blanks.matches("--").count();
    let brackets = source.matches(['(', '[', '{']).count();
    if source.len() > MOST_BYTES || brackets > MOST_BRACKETS || doubled > MOST_DOUBLED {
        return Err(format!(
            "an expression has at most {MOST_BYTES} bytes, {MOST_BRACKETS} brackets, and {MOST_DOUBLED} of '!!' and '--'"
        ));
    }
    let program = Program::compile(source).map_err(|error| {
        let error = error.to_string();
        let reason = error.lines().next().unwrap_or_default();
        format!("'{}' is no expression in CEL: {}", shown(source), shown(reason))
    })?;
    let references = program.references();
    match references.variables().into_iter().find(|name| !known.contains(name)) {
        Some(unknown) => {
            let known = known.join(" and ");
            Err(format!(
                "no call has '{}': only {known} is known in {key}, and no variable of a macro such as exists",
                shown(unknown)
            ))
        }
        None => Ok(program),
    }
}
