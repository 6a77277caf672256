//! What the report says to paste into a file of limits, checked by the gate. GATE names its program.

use std::process::Command;

use crate::run::json;

/// Returns what the report says to paste for the gate.
fn pasted(words: &str, input: &str) -> Option<String> {
    let report = json(words, input);
    let mut places = report["paste"].as_array().expect("a list").iter();
    let place = places.find(|place| place["place"] == "the gate")?;
    Some(place["lines"].as_str().expect("text").to_owned())
}

/// Returns what the gate says about a file of limits, and whether it would start with it.
fn check(limits: &str) -> (bool, String) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), limits).expect("a file");
    let program = std::env::var("GATE").expect("GATE names tokenbucket-gate: make test sets it");
    let output = Command::new(&program).env_clear().arg("check").arg(file.path()).output().expect("the gate");
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn the_gate_takes_what_the_report_says_to_paste() {
    let line = r##"{"time": 1772409600, "ip": "192.0.2.1", "api_key": "a", "@user": "u", "a: b": "c", "#": "d", "X-Id": "e"}"##;
    let log = format!("{line}\n{line}\n");
    for by in ["ip", "api_key", "api_key,ip", "@user", "a:·b", "#", "X-Id", "X-Id,@user"] {
        for limit in [
            "33·1/m",
            "30·30@d --limit 6·30/h",
            "5·5",
            "1.5·0.5",
            "1e3·1000@3mo+14d",
            "10·1/250ms",
            "007·2/s",
        ] {
            let words = format!("--by {by} --limit {limit}");
            let limits = pasted(&words, &log).unwrap_or_else(|| panic!("nothing for {words}"));
            let (is_taken, said) = check(&limits);
            let count = words.matches("--limit").count();
            assert!(is_taken && said.contains(&format!("{count} limit")), "{words}: {said}\n{limits}");
        }
    }
    // The suggestion.
    assert!(check(&pasted("", &log).expect("a limit")).0);
}

/// Several fields are entries of one descriptor, and several limits are several descriptors: Envoy sends no other keys.
#[test]
fn what_is_pasted_has_the_keys_that_envoy_sends() {
    let log = "{\"time\": 1772409600, \"ip\": \"192.0.2.1\", \"path\": \"/\", \"status\": 200}\n";
    let limits = pasted("--by ip,path --limit 3·1/h --limit 9·1/d", log).expect("limits");
    let wanted = "domain: edge
descriptors:
  - key: \"remote_address\"
    descriptors:
      - key: \"path\"
        rate_limit: {rate: 1/h, capacity: 3}
  - key: generic_key # one more descriptor of each request, that begins with this entry
    value: \"2\"
    descriptors:
      - key: \"remote_address\"
        descriptors:
          - key: \"path\"
            rate_limit: {rate: 1/d, capacity: 9}";
    assert_eq!(limits, wanted);
    assert_eq!(check(&limits), (true, "ok: 2 limits, 1 domain\n".to_owned()));
    assert_eq!(pasted("--by ip,status --limit 3·1/h", log), None, "no request knows its status");
}

/// The gate refuses a limit that lets nothing through, so there is nothing to paste.
#[test]
fn nothing_is_pasted_that_the_gate_refuses() {
    let log = "{\"time\": 1772409600, \"ip\": \"192.0.2.1\"}\n";
    for limit in ["0·1/s", "0.5·1/m", "9·1/m --limit 0·1"] {
        assert_eq!(pasted(&format!("--limit {limit}"), log), None, "{limit}");
    }
    let limits = pasted("--limit 1·1/m", log).expect("a limit");
    assert!(check(&limits).0 && !check(&limits.replace("capacity: 1", "capacity: 0.999999")).0, "{limits}");
}
