//! `metadata` of a file, as the message that replies carry.

use super::yaml::{Data, Faults, Meaning, Node};
use crate::messages::{Struct, Value};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::ListValue;

/// Protobuf readers give up at 100 levels, and each level here makes three.
const MAX_DEPTH: usize = 16;

/// Reads a mapping of anything; `None` if it is empty or wrong.
pub(super) fn read(node: &Node<'_>, faults: &mut Faults) -> Option<Struct> {
    let Data::Map(pairs) = &node.data else {
        let problem = format!("error loading config file: metadata must be a mapping, not {}", node.shown());
        faults.add(node.line, problem);
        return None;
    };
    let metadata = struct_of(pairs, MAX_DEPTH - 1).unwrap_or_else(|problem| {
        faults.add(node.line, format!("error parsing metadata: {problem}"));
        Struct::default()
    });
    (!metadata.fields.is_empty()).then_some(metadata)
}

fn struct_of(pairs: &[(Node<'_>, Node<'_>)], depth: usize) -> Result<Struct, String> {
    let fields = pairs.iter().map(|(key, value)| match &key.data {
        Data::Scalar(key) => Ok((key.text.clone().into_owned(), value_of(value, depth)?)),
        _ => Err(format!("a key is {}", key.shown())),
    });
    Ok(Struct { fields: fields.collect::<Result<_, _>>()? })
}

fn value_of(node: &Node<'_>, depth: usize) -> Result<Value, String> {
    let below = || depth.checked_sub(1).ok_or_else(|| format!("nested deeper than {MAX_DEPTH} levels"));
    let kind = match &node.data {
        Data::Map(pairs) => Kind::StructValue(struct_of(pairs, below()?)?),
        Data::List(items) => {
            let depth = below()?;
            let values = items.iter().map(|item| value_of(item, depth)).collect::<Result<_, _>>()?;
            Kind::ListValue(ListValue { values })
        }
        Data::Scalar(scalar) => match scalar.meaning() {
            Meaning::Nothing => Kind::NullValue(0),
            Meaning::Truth(truth) => Kind::BoolValue(truth),
            Meaning::Number(number) if number.is_finite() => Kind::NumberValue(number),
            _ => Kind::StringValue(scalar.text.clone().into_owned()),
        },
    };
    Ok(Value { kind: Some(kind) })
}
