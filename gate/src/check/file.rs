//! Reads a file of rules.

use std::net::IpAddr;

use axum::http::{HeaderName, StatusCode};
use ipnet::IpNet;

use super::pattern::Pattern;
use super::rule::{Descriptor, Entry, Rule, Rules, Source};
use crate::limits::yaml::{self, shown, Data, Fault, Faults, Node};
use crate::limits::{File, Mistake};

type Read<T> = Result<T, Fault>;

impl Rules {
    /// Reads a file of rules.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub fn read(file: &File) -> Result<Self, Mistake> {
        let mistake = |Fault { line, problem }| Mistake { file: file.name.clone(), line, problem };
        let mut faults = Faults::default();
        let document = yaml::read(&file.text, &mut faults).map_err(mistake)?;
        if let Some(fault) = faults.sorted().into_iter().next() {
            return Err(mistake(fault));
        }
        let document = document.ok_or_else(|| mistake(Fault::new(1, "the file is empty")))?;
        rules(&document).map_err(mistake)
    }
}

fn rules(node: &Node<'_>) -> Read<Rules> {
    node.has_only(&["domain", "deny_with", "trusted_hops", "proxies", "rules"])?;
    let domain = node.needed("domain")?;
    if domain.text()?.is_empty() {
        return Err(domain.fault("the domain is empty"));
    }
    Ok(Rules {
        domain: domain.text()?,
        denied_status: node.read("deny_with", denied_status)?.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        trusted_hops: node.read("trusted_hops", hops)?.unwrap_or(1),
        proxies: node.read("proxies", |list| list.each(network))?.unwrap_or_else(private_networks),
        rules: node.needed("rules")?.each(rule)?,
    })
}

fn denied_status(node: &Node<'_>) -> Read<StatusCode> {
    match node.text()?.as_str() {
        "429" => Ok(StatusCode::TOO_MANY_REQUESTS),
        "403" => Ok(StatusCode::FORBIDDEN),
        other => Err(node.fault(format!("deny_with is 429 or 403, not '{other}'"))),
    }
}

fn hops(node: &Node<'_>) -> Read<usize> {
    let hops = node.text()?.parse().ok().filter(|hops| (1..=100).contains(hops));
    hops.ok_or_else(|| node.fault("trusted_hops is a number from 1 to 100"))
}

fn network(node: &Node<'_>) -> Read<IpNet> {
    let text = node.text()?;
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| node.fault(format!("'{text}' is not an address or a network like 10.0.0.0/8")))
}

fn rule(node: &Node<'_>) -> Read<Rule> {
    node.has_only(&["host", "path", "method", "descriptors"])?;
    let patterns = |key| node.read(key, |one| one.one_or_more(pattern));
    let paths = patterns("path")?.unwrap_or_default();
    let hosts = patterns("host")?.unwrap_or_default();
    let methods = node.read("method", |one| one.one_or_more(Node::text))?.unwrap_or_default();
    let descriptors = node.needed("descriptors")?.each(|one| descriptor(one, &paths))?;
    Ok(Rule { paths, hosts, methods, descriptors })
}

fn pattern(node: &Node<'_>) -> Read<Pattern> {
    Pattern::read(&node.text()?).map_err(|problem| node.fault(problem))
}

fn descriptor(node: &Node<'_>, paths: &[Pattern]) -> Read<Descriptor> {
    node.has_only(&["entries", "hits"])?;
    let entries = node.needed("entries")?;
    let read = entries.each(|one| entry(one, paths))?;
    if read.is_empty() {
        return Err(entries.fault("a descriptor needs an entry"));
    }
    Ok(Descriptor { entries: read, hits: node.read("hits", |one| hits(one, paths))? })
}

/// Reads how much a request counts: a number, or its source.
fn hits(node: &Node<'_>, paths: &[Pattern]) -> Read<Source> {
    let text = node.text()?;
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return source(node, paths);
    }
    match text.parse::<u64>() {
        Ok(_) => Ok(Source::Fixed(text)),
        Err(_) => Err(node.fault("hits is a whole number, or where one comes from")),
    }
}

fn entry(node: &Node<'_>, paths: &[Pattern]) -> Read<Entry> {
    node.has_only(&["key", "value", "from", "ipv4_prefix", "ipv6_prefix"])?;
    let key = node.needed("key")?;
    if key.text()?.is_empty() {
        return Err(key.fault("the key is empty"));
    }
    let source = match (node.get("value"), node.get("from")) {
        (Some(value), None) => Source::Fixed(value.text()?),
        (None, Some(from)) => from_address(node, from, source(from, paths)?)?,
        _ => return Err(node.fault("an entry has either 'value' or 'from'")),
    };
    Ok(Entry { key: key.text()?, source })
}

/// Reads the network by which an entry counts addresses, if it has one.
fn from_address(node: &Node<'_>, from: &Node<'_>, source: Source) -> Read<Source> {
    let prefix = |key, most| node.read(key, |one| prefix(one, most));
    match (source, prefix("ipv4_prefix", 32)?, prefix("ipv6_prefix", 128)?) {
        (Source::Address { .. }, v4, v6) => {
            Ok(Source::Address { v4: v4.unwrap_or(32), v6: v6.unwrap_or(64) })
        }
        (other, None, None) => Ok(other),
        _ => Err(from.fault("ipv4_prefix and ipv6_prefix are for 'from: address'")),
    }
}

fn prefix(node: &Node<'_>, most: u8) -> Read<u8> {
    let bits = node.text()?.parse().ok().filter(|bits| *bits <= most);
    bits.ok_or_else(|| node.fault(format!("a prefix is a number of bits, 0 to {most}")))
}

fn source(node: &Node<'_>, paths: &[Pattern]) -> Read<Source> {
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
        ["path", name] => Err(node.fault(format!("not every path of this rule has {{{name}}}"))),
        ["query", name] => Ok(Source::Parameter(name.to_owned())),
        ["header", name] => match name.parse::<HeaderName>() {
            Ok(name) => Ok(Source::Header(name.as_str().to_owned())),
            Err(_) => Err(node.fault(format!("'{name}' is not the name of a header"))),
        },
        _ => Err(node.fault(format!("'{text}' is none of: {SOURCES}"))),
    }
}

const SOURCES: &str = "address, host, method, path, path NAME, query, query NAME, header NAME";

/// Returns the default of `proxies`: loopback and private addresses.
fn private_networks() -> Vec<IpNet> {
    let known = "127.0.0.0/8 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 ::1/128 fc00::/7";
    known.split(' ').filter_map(|network| network.parse().ok()).collect()
}

impl Node<'_> {
    fn fault(&self, problem: impl Into<String>) -> Fault {
        Fault::new(self.line, problem)
    }

    fn has_only(&self, known: &[&str]) -> Read<()> {
        let known_names = || known.join(", ");
        let Data::Map(pairs) = &self.data else {
            return Err(self.fault(format!("expected a mapping with: {}", known_names())));
        };
        for (key, _) in pairs {
            let name = key.text()?;
            if !known.contains(&name.as_str()) {
                let problem = format!("unknown key '{}', none of: {}", shown(&name), known_names());
                return Err(key.fault(problem));
            }
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Option<&Self> {
        let Data::Map(pairs) = &self.data else { return None };
        let is_key = |node: &Self| matches!(&node.data, Data::Scalar(scalar) if scalar.text == key);
        pairs.iter().find(|(name, _)| is_key(name)).map(|(_, value)| value)
    }

    /// Reads the value of a key, if it is there.
    fn read<T>(&self, key: &str, read: impl Fn(&Self) -> Read<T>) -> Read<Option<T>> {
        self.get(key).map(read).transpose()
    }

    fn needed(&self, key: &str) -> Read<&Self> {
        self.get(key).ok_or_else(|| self.fault(format!("'{key}' is missing")))
    }

    fn each<T>(&self, read: impl Fn(&Self) -> Read<T>) -> Read<Vec<T>> {
        match &self.data {
            Data::List(items) => items.iter().map(read).collect(),
            _ => Err(self.fault("expected a list")),
        }
    }

    /// Returns a list, or one without the brackets.
    fn one_or_more<T>(&self, read: impl Fn(&Self) -> Read<T>) -> Read<Vec<T>> {
        match &self.data {
            Data::List(_) => self.each(read),
            _ => Ok(vec![read(self)?]),
        }
    }

    /// Returns the text of a scalar as written: `value: 007` is the text 007.
    fn text(&self) -> Read<String> {
        match &self.data {
            Data::Scalar(scalar) if !self.is_nothing() => Ok(scalar.text.clone().into_owned()),
            _ => Err(self.fault("expected a text")),
        }
    }
}
