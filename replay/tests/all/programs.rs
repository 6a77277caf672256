//! Logs as real programs write them. Each is started here, asked, and its log read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

use crate::ports::free_port;
use crate::program::{folder, program, Program};
use crate::run::{json, requests};

const REQUESTS: u64 = 5;
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the program that a variable names, by a configuration in which PORT and FOLDER are replaced.
fn start(variable: &str, default: &str, file: &str, configuration: &str, options: &[&str]) -> Program {
    let (port, folder) = (free_port(), folder(&[]));
    let place = folder.path().display().to_string();
    let replaced = configuration.replace("PORT", &port.to_string()).replace("FOLDER", &place);
    std::fs::write(folder.path().join(file), replaced).expect("a file");
    Program::start(port, folder, &[&[program(variable, default).as_str()], options].concat())
}

/// Sends a request, and returns the status of the reply.
fn ask(port: u16, headers: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    write!(stream, "GET /path?query HTTP/1.1\r\nhost: example\r\n{headers}connection: close\r\n\r\n")
        .expect("a request");
    let mut reply = String::new();
    let _ = stream.read_to_string(&mut reply);
    reply.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Asks the program, waits for its log, and checks what is read from it: the format, the client, and when it asked.
fn check(program: &Program, log: &str, headers: &str, format: &str, client: &str) {
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let (log, before_s) = (program.folder.path().join(log), now_s());
    for _ in 0..REQUESTS {
        assert_eq!(ask(program.port, headers), "200");
    }
    let after_s = now_s();
    let deadline = Instant::now() + PATIENCE;
    // Programs mix their logs with other lines.
    let lines = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.split_inclusive('\n').filter(|line| line.contains("/path")).collect::<String>()
    };
    while (lines().lines().count() as u64) < REQUESTS {
        assert!(Instant::now() < deadline, "{}", lines());
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = lines();
    let report = json("", &log);
    assert_eq!(report["sources"][0]["format"], format, "{log}");
    let read = requests("", &log);
    let [(key, REQUESTS, first)] = read.as_slice() else { panic!("{read:?} of {log}") };
    assert_eq!(key, client, "{log}");
    let first_s = first.parse::<Timestamp>().expect("a time").as_second() as u64;
    assert!((before_s..=after_s).contains(&first_s), "{first}, not from {before_s} to {after_s}: {log}");
}

const COMMON: &str = "common or combined log";

#[test]
fn nginx_by_default_behind_a_proxy_and_in_json() {
    for (format, format_is, headers, client) in [
        ("combined", COMMON, "", "127.0.0.1"),
        (
            r#"main '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" "$http_x_forwarded_for"'"#,
            COMMON,
            "X-Forwarded-For: 203.0.113.5, 2001:db8::5\r\n",
            "2001:db8::/64",
        ),
        // What many put behind the user agent is no client.
        (
            r#"hosts '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" "$server_addr" $host'"#,
            COMMON,
            "X-Forwarded-For: 203.0.113.5\r\n",
            "127.0.0.1",
        ),
        (
            r#"own escape=json '{"msec":$msec,"remote_addr":"$remote_addr","request":"$request","agent":"$http_user_agent"}'"#,
            "JSON",
            "User-Agent: a \"quoted\" one\r\n",
            "127.0.0.1",
        ),
    ] {
        let name = format.split(' ').next().expect("a name");
        let define = if name == "combined" { String::new() } else { format!("log_format {format};") };
        let configuration = nginx(&format!("{define} access_log FOLDER/access.log {name};"));
        let program =
            start("NGINX", "/usr/sbin/nginx", "nginx.conf", &configuration, &["-c", "nginx.conf", "-p", "."]);
        check(&program, "access.log", headers, format_is, client);
    }
}

/// Returns a configuration in which a log is written as told.
fn nginx(access_log: &str) -> String {
    format!(
        "daemon off; pid FOLDER/pid; error_log stderr; worker_processes 1; events {{}} http {{
            client_body_temp_path FOLDER/1; proxy_temp_path FOLDER/2; fastcgi_temp_path FOLDER/3; uwsgi_temp_path FOLDER/4; scgi_temp_path FOLDER/5;
            {access_log} server {{ listen 127.0.0.1:PORT; return 200 ok; }} }}"
    )
}

#[test]
fn haproxy() {
    let configuration = "global\n log stdout format raw local0\ndefaults\n mode http\n log global\n option httplog\n timeout client 9s\n timeout connect 9s\n timeout server 9s
frontend edge\n bind 127.0.0.1:PORT\n http-request return status 200\n";
    let program = start("HAPROXY", "/usr/sbin/haproxy", "haproxy.cfg", configuration, &["-f", "haproxy.cfg"]);
    check(&program, "log", "", "HAProxy log", "127.0.0.1");
}

#[test]
fn caddy() {
    let configuration = "{\n admin off\n auto_https off\n}\nhttp://127.0.0.1:PORT, http://example:PORT {\n log {\n output file FOLDER/access.log\n }\n respond ok\n}\n";
    let program = start("CADDY", "caddy", "Caddyfile", configuration, &["run", "--config", "Caddyfile"]);
    check(&program, "access.log", "Authorization: secret\r\n", "JSON", "127.0.0.1");
}

#[test]
fn envoy_by_default_and_in_json() {
    let json = "json_format: {start_time: '%START_TIME%', path: '%REQ(:PATH)%', downstream_remote_address: '%DOWNSTREAM_REMOTE_ADDRESS%', status: '%RESPONSE_CODE%'}";
    for (log_format, headers, format_is, client) in [
        ("", "X-Forwarded-For: 198.51.100.1, 203.0.113.5\r\n", "Envoy's text format", "203.0.113.5"),
        (json, "", "JSON", "127.0.0.1"),
    ] {
        let log_format =
            if log_format.is_empty() { String::new() } else { format!(", log_format: {{{log_format}}}") };
        let configuration = format!(
            "static_resources: {{listeners: [{{address: {{socket_address: {{address: 127.0.0.1, port_value: PORT}}}}, filter_chains: [{{filters: [{{name: http, typed_config: {{
  '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: http,
  access_log: [{{name: file, typed_config: {{'@type': type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: FOLDER/access.log{log_format}}}}}],
  http_filters: [{{name: router, typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}],
  route_config: {{virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200}}}}]}}]}}}}}}]}}]}}]}}\n"
        );
        let options = [
            "-c",
            "envoy.yaml",
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "--log-level",
            "warning",
            "--file-flush-interval-msec",
            "50",
        ];
        let program = start("ENVOY", "envoy", "envoy.yaml", &configuration, &options);
        check(&program, "access.log", headers, format_is, client);
    }
}
