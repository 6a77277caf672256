//! The page, in a real browser.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::run::text;

/// Tells how wide the page is, its colours, and how well its texts stand out from what is behind them.
const MEASURE: &str = r#"<script>
const rgb = color => color.match(/[\d.]+/g).map(Number);
const light = color => rgb(color).slice(0, 3).map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
const behind = of => { for (; of; of = of.parentElement) { const color = getComputedStyle(of).backgroundColor; if (rgb(color)[3] !== 0) return color; } };
const shown = [...document.querySelectorAll('main *')].filter(of => of.getClientRects().length && [...of.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
const contrasts = shown.map(of => {
  const style = getComputedStyle(of), color = of.closest('svg') ? style.fill : style.color;
  const [a, b] = [light(color), light(behind(of))].sort((a, b) => b - a);
  return [(a + .05) / (b + .05), of.textContent.slice(0, 40)];
});
const sizes = shown.map(of => { const svg = of.closest('svg'); const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  return parseFloat(getComputedStyle(of).fontSize) * scale; });
parent.document.title = JSON.stringify({ wide: document.documentElement.scrollWidth, ground: getComputedStyle(document.body).backgroundColor,
  least: contrasts.sort((a, b) => a[0] - b[0])[0], smallest: Math.min(...sizes), pictures: [...document.querySelectorAll('svg')].filter(of => of.getClientRects().length).length,
  lines: document.querySelectorAll('.w760 .line').length, loads: performance.getEntriesByType('resource').length });
</script>"#;

/// Returns what the browser measures in a window of this width.
fn measure(page: &str, folder: &Path, width: u32, is_dark: bool) -> Value {
    // The page forbids scripts: the test's copy allows one, and is shown within another page, whose frame has this width.
    let page = page.replace("default-src 'none'; ", "").replace("</body>", &format!("{MEASURE}</body>"));
    let quoted = page.replace('&', "&amp;").replace('"', "&quot;");
    let frame = format!("<!doctype html><body style=\"margin:0\"><iframe style=\"border:0;width:{width}px;height:800px\" srcdoc=\"{quoted}\"></iframe>");
    let path = folder.join("frame.html");
    std::fs::write(&path, frame).expect("a file");
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    let output = Command::new(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=5000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark)))
        .arg(format!("file://{}", path.display()))
        .output()
        .expect("chromium");
    let dom = String::from_utf8_lossy(&output.stdout);
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    let title = title.unwrap_or_else(|| panic!("{dom} {}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(&title.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
        .expect("what was measured")
}

#[test]
fn the_page_is_readable_on_a_desk_and_on_a_phone_in_light_and_dark() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = |place: u32| {
        let (time, key) = (1_772_442_611 + place * place % 90_000, place * place % 1200);
        format!("{{\"time\":{time},\"user\":\"a-name-of-a-user-that-is-rather-long-{key}@tenant.example.com\"}}\n")
    };
    let path = folder.path().join("report.html");
    let words = format!("--by user --limit 3·1/h --limit 9·100@d --versus 5·2/h --html {}", path.display());
    text(&words, (0..9000).map(line).collect::<String>() + "unread\n");
    let page = std::fs::read_to_string(path).expect("a page");
    let mut grounds = Vec::new();
    for (width, is_dark) in [(390, false), (390, true), (1280, false), (1280, true)] {
        let measured = measure(&page, folder.path(), width, is_dark);
        assert!(measured["wide"].as_u64() <= Some(width.into()), "wider than {width} px: {measured}");
        assert!(measured["least"][0].as_f64() >= Some(4.5), "a text does not stand out: {measured}");
        assert!(measured["smallest"].as_f64() >= Some(11.0), "a text is too small: {measured}");
        assert_eq!(
            (&measured["pictures"], &measured["lines"], &measured["loads"]),
            (&3.into(), &3.into(), &0.into()),
            "{measured}"
        );
        grounds.push(measured["ground"].as_str().expect("a colour").to_owned());
    }
    assert!(grounds[0] == grounds[2] && grounds[1] == grounds[3] && grounds[0] != grounds[1], "{grounds:?}");
}
