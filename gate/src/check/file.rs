//! Reads a file of rules.

use std::net::IpAddr;

use axum::http::{HeaderName, StatusCode};

use super::pattern::Pattern;
use super::rule::{Descriptor, Entry, Network, Rule, Rules, Source};
use crate::limits::yaml::{self, shown, Data, Fault, Faults};
use crate::limits::{File, Mistake};

impl Rules {
    /// Reads a file of rules.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub fn read(file: &File) -> Result<Self, Mistake> {
        let mut faults = Faults::default();
        let document = yaml::read(&file.text, &mut faults).map_err(|fault| of_file(file, fault))?;
        if let Some(fault) = faults.sorted().into_iter().next() {
            return Err(of_file(file, fault));
        }
        let document = document.ok_or_else(|| mistake(file, 1, "the file is empty".to_owned()))?;
        rules(&Node { file, yaml: &document })
    }
}

fn of_file(file: &File, fault: Fault) -> Mistake {
    mistake(file, fault.line, fault.problem)
}

fn mistake(file: &File, line: usize, problem: String) -> Mistake {
    Mistake { file: file.name.clone(), line: line.max(1), problem }
}

fn rules(node: &Node<'_>) -> Result<Rules, Mistake> {
    node.has_only(&["domain", "deny_with", "trusted_hops", "proxies", "rules"])?;
    let domain = node.needed("domain")?;
    if domain.text()?.is_empty() {
        return Err(domain.mistake("the domain is empty"));
    }
    Ok(Rules {
        domain: domain.text()?,
        denied_status: node
            .get("deny_with")
            .map_or(Ok(StatusCode::TOO_MANY_REQUESTS), |one| denied_status(&one))?,
        trusted_hops: node.get("trusted_hops").map_or(Ok(1), |one| hops(&one))?,
        proxies: node
            .get("proxies")
            .map(|list| list.each(network))
            .transpose()?
            .unwrap_or_else(Network::private),
        rules: node.needed("rules")?.each(rule)?,
    })
}

fn denied_status(node: &Node<'_>) -> Result<StatusCode, Mistake> {
    match node.text()?.as_str() {
        "429" => Ok(StatusCode::TOO_MANY_REQUESTS),
        "403" => Ok(StatusCode::FORBIDDEN),
        other => Err(node.mistake(&format!("deny_with is 429 or 403, not '{other}'"))),
    }
}

fn hops(node: &Node<'_>) -> Result<usize, Mistake> {
    let hops = node.text()?.parse().ok().filter(|hops| (1..=100).contains(hops));
    hops.ok_or_else(|| node.mistake("trusted_hops is a number from 1 to 100"))
}

fn network(node: &Node<'_>) -> Result<Network, Mistake> {
    let text = node.text()?;
    Network::read(&text)
        .ok_or_else(|| node.mistake(&format!("'{text}' is not an address or a network like 10.0.0.0/8")))
}

fn rule(node: &Node<'_>) -> Result<Rule, Mistake> {
    node.has_only(&["host", "path", "method", "descriptors"])?;
    let patterns = |key| node.get(key).map(|one| one.one_or_more(pattern)).transpose();
    let paths = patterns("path")?.unwrap_or_default();
    let hosts = patterns("host")?.unwrap_or_default();
    let methods = node.get("method").map(|one| one.one_or_more(Node::text)).transpose()?.unwrap_or_default();
    let descriptors = node.needed("descriptors")?.each(|one| descriptor(one, &paths))?;
    Ok(Rule { paths, hosts, methods, descriptors })
}

fn pattern(node: &Node<'_>) -> Result<Pattern, Mistake> {
    Pattern::read(&node.text()?).map_err(|problem| node.mistake(&problem))
}

fn descriptor(node: &Node<'_>, paths: &[Pattern]) -> Result<Descriptor, Mistake> {
    node.has_only(&["entries", "hits"])?;
    let entries = node.needed("entries")?;
    let read = entries.each(|one| entry(one, paths))?;
    if read.is_empty() {
        return Err(entries.mistake("a descriptor needs an entry"));
    }
    Ok(Descriptor { entries: read, hits: node.get("hits").map(|one| hits(&one, paths)).transpose()? })
}

/// Reads how much a request counts: a number, or its source.
fn hits(node: &Node<'_>, paths: &[Pattern]) -> Result<Source, Mistake> {
    let text = node.text()?;
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return source(node, paths);
    }
    match text.parse::<u64>() {
        Ok(_) => Ok(Source::Fixed(text)),
        Err(_) => Err(node.mistake("hits is a whole number, or where one comes from")),
    }
}

fn entry(node: &Node<'_>, paths: &[Pattern]) -> Result<Entry, Mistake> {
    node.has_only(&["key", "value", "from", "ipv4_prefix", "ipv6_prefix"])?;
    let key = node.needed("key")?;
    if key.text()?.is_empty() {
        return Err(key.mistake("the key is empty"));
    }
    let source = match (node.get("value"), node.get("from")) {
        (Some(value), None) => Source::Fixed(value.text()?),
        (None, Some(from)) => from_address(node, &from, source(&from, paths)?)?,
        _ => return Err(node.mistake("an entry has either 'value' or 'from'")),
    };
    Ok(Entry { key: key.text()?, source })
}

/// Reads the network by which an entry counts addresses, if it has one.
fn from_address(node: &Node<'_>, from: &Node<'_>, source: Source) -> Result<Source, Mistake> {
    let prefix = |key, most| node.get(key).map(|one| prefix(&one, most)).transpose();
    match (source, prefix("ipv4_prefix", 32)?, prefix("ipv6_prefix", 128)?) {
        (Source::Address { .. }, v4, v6) => {
            Ok(Source::Address { v4: v4.unwrap_or(32), v6: v6.unwrap_or(64) })
        }
        (other, None, None) => Ok(other),
        _ => Err(from.mistake("ipv4_prefix and ipv6_prefix are for 'from: address'")),
    }
}

fn prefix(node: &Node<'_>, most: u8) -> Result<u8, Mistake> {
    let bits = node.text()?.parse().ok().filter(|bits| *bits <= most);
    bits.ok_or_else(|| node.mistake(&format!("a prefix is a number of bits, 0 to {most}")))
}

fn source(node: &Node<'_>, paths: &[Pattern]) -> Result<Source, Mistake> {
    let text = node.text()?;
    let words: Vec<_> = text.split_ascii_whitespace().collect();
    match words[..] {
        ["address"] => Ok(Source::Address { v4: 32, v6: 64 }),
        ["path"] => Ok(Source::Path),
        ["method"] => Ok(Source::Method),
        ["host"] => Ok(Source::Host),
        ["query"] => Ok(Source::Query),
        ["path", name] if !paths.is_empty() && paths.iter().all(|path| path.has(name)) => {
            Ok(Source::Segment(name.to_owned()))
        }
        ["path", name] => Err(node.mistake(&format!("not every path of this rule has {{{name}}}"))),
        ["query", name] => Ok(Source::Parameter(name.to_owned())),
        ["header", name] => match name.parse::<HeaderName>() {
            Ok(name) => Ok(Source::Header(name.as_str().to_owned())),
            Err(_) => Err(node.mistake(&format!("'{name}' is not the name of a header"))),
        },
        _ => Err(node.mistake(&format!("'{text}' is none of: {SOURCES}"))),
    }
}

const SOURCES: &str = "address, host, method, path, path NAME, query, query NAME, header NAME";

impl Network {
    fn read(text: &str) -> Option<Self> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok().filter(|bits| *bits <= most))?;
        Some(Self { address, bits })
    }

    /// Returns the default: loopback and private addresses.
    fn private() -> Vec<Self> {
        let known = "127.0.0.0/8 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 ::1 fc00::/7";
        known.split(' ').filter_map(Self::read).collect()
    }
}

/// A node of a file, whose mistakes have their line.
struct Node<'a> {
    file: &'a File,
    yaml: &'a yaml::Node<'a>,
}

impl<'a> Node<'a> {
    fn mistake(&self, problem: &str) -> Mistake {
        mistake(self.file, self.yaml.line, problem.to_owned())
    }

    fn of(&self, yaml: &'a yaml::Node<'a>) -> Self {
        Self { file: self.file, yaml }
    }

    fn has_only(&self, known: &[&str]) -> Result<(), Mistake> {
        let Data::Map(pairs) = &self.yaml.data else {
            return Err(self.mistake(&format!("expected a mapping with: {}", known.join(", "))));
        };
        for (key, _) in pairs {
            let key = self.of(key);
            let name = key.text()?;
            if !known.contains(&name.as_str()) {
                return Err(key.mistake(&format!(
                    "unknown key '{}', none of: {}",
                    shown(&name),
                    known.join(", ")
                )));
            }
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Option<Self> {
        let Data::Map(pairs) = &self.yaml.data else { return None };
        let is_key = |node: &yaml::Node<'_>| matches!(&node.data, Data::Scalar(scalar) if scalar.text == key);
        pairs.iter().find(|(name, _)| is_key(name)).map(|(_, value)| self.of(value))
    }

    fn needed(&self, key: &str) -> Result<Self, Mistake> {
        self.get(key).ok_or_else(|| self.mistake(&format!("'{key}' is missing")))
    }

    fn each<T>(&self, read: impl Fn(&Self) -> Result<T, Mistake>) -> Result<Vec<T>, Mistake> {
        match &self.yaml.data {
            Data::List(items) => items.iter().map(|item| read(&self.of(item))).collect(),
            _ => Err(self.mistake("expected a list")),
        }
    }

    /// Returns a list, or one without the brackets.
    fn one_or_more<T>(&self, read: impl Fn(&Self) -> Result<T, Mistake>) -> Result<Vec<T>, Mistake> {
        match &self.yaml.data {
            Data::List(_) => self.each(read),
            _ => Ok(vec![read(self)?]),
        }
    }

    /// Returns the text of a scalar as written: `value: 007` is the text 007.
    fn text(&self) -> Result<String, Mistake> {
        match &self.yaml.data {
            Data::Scalar(scalar) if !self.yaml.is_nothing() => Ok(scalar.text.clone().into_owned()),
            _ => Err(self.mistake("expected a text")),
        }
    }
}
