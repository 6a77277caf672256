//! Logs as real programs write them. Each is started here, asked, and its log read.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

use crate::run::{json, requests};

const REQUESTS: u64 = 5;
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that listens on a port, and is ended with the test.
struct Program {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", read(&self.folder.path().join("out")));
        }
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// Starts the program that a variable names, by a configuration in which PORT and FOLDER are replaced. Retries if another
/// process takes its port.
fn start(variable: &str, default: &str, file: &str, configuration: &str, options: &[&str]) -> (Program, u16) {
    for _ in 0..5 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().display().to_string();
        let replaced = configuration.replace("PORT", &port.to_string()).replace("FOLDER", &place);
        std::fs::write(folder.path().join(file), replaced).expect("a file");
        let out = std::fs::File::create(folder.path().join("out")).expect("a file");
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(std::env::var(variable).unwrap_or_else(|_| default.to_owned()))
            .args(options)
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a file"))
            .stderr(out)
            .spawn()
            .unwrap_or_else(|error| panic!("{variable}: {error}"));
        let mut program = Program { child, folder };
        let deadline = Instant::now() + PATIENCE;
        while program.child.try_wait().expect("a child").is_none() {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return (program, port);
            }
            assert!(Instant::now() < deadline, "{variable} does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{variable} ended: {}", read(&program.folder.path().join("out")));
    }
    panic!("{variable} does not start");
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
fn check(program: (Program, u16), log: &str, headers: &str, format: &str, client: &str) {
    let (program, port) = program;
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let (log, before_s) = (program.folder.path().join(log), now_s());
    for _ in 0..REQUESTS {
        assert_eq!(ask(port, headers), "200");
    }
    let after_s = now_s();
    let deadline = Instant::now() + PATIENCE;
    let count = || read(&log).lines().filter(|line| line.contains("/path")).count() as u64;
    while count() < REQUESTS {
        assert!(Instant::now() < deadline, "{}", read(&log));
        std::thread::sleep(Duration::from_millis(20));
    }
    // Programs mix their logs with other lines.
    let log = read(&log)
        .lines()
        .filter(|line| line.contains("/path"))
        .fold(String::new(), |log, line| log + line + "\n");
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
        check(program, "access.log", headers, format_is, client);
    }
}

/// The lines come as nginx sends them to syslog, by a socket that this test reads.
#[test]
fn nginx_behind_syslog() {
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let address = socket.local_addr().expect("an address");
    for (options, around) in [("", "syslog"), (",nohostname,tag=web", "syslog")] {
        let configuration = nginx(&format!("access_log syslog:server={address}{options} combined;"));
        let (program, port) =
            start("NGINX", "/usr/sbin/nginx", "nginx.conf", &configuration, &["-c", "nginx.conf", "-p", "."]);
        assert_eq!(ask(port, ""), "200");
        let mut line = [0; 4096];
        let length = socket.recv(&mut line).expect("a line");
        let line = String::from_utf8_lossy(&line[..length]).into_owned();
        assert_eq!(json("", &line)["sources"][0]["format"], format!("{COMMON}, behind {around}"), "{line}");
        assert_eq!(requests("--where path=/path", &line)[0].0, "127.0.0.1", "{line}");
        drop(program);
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

/// Debian's `other_vhosts_access.log`.
#[test]
fn apache_with_a_log_of_all_hosts() {
    let modules = ["mpm_event", "authz_core", "alias"];
    let modules =
        modules.map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
    let configuration = modules.concat()
        + r#"ServerName edge.example
PidFile FOLDER/pid
DefaultRuntimeDir FOLDER
Listen 127.0.0.1:PORT
AliasMatch ^/path FOLDER/httpd.conf
LogFormat "%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\"" vhost_combined
CustomLog FOLDER/access.log vhost_combined
ErrorLog /dev/stderr
"#;
    let program = start(
        "APACHE",
        "/usr/sbin/apache2",
        "httpd.conf",
        &configuration,
        &["-X", "-d", ".", "-f", "httpd.conf"],
    );
    check(program, "access.log", "", "combined log behind a host", "127.0.0.1");
}

#[test]
fn squid() {
    let address = backend();
    let configuration = format!(
        "http_port 127.0.0.1:PORT accel defaultsite=example no-vhost\ncache_peer 127.0.0.1 parent {} 0 no-query originserver\nhttp_access allow all\ncache deny all\n\
         access_log stdio:FOLDER/access.log squid\nbuffered_logs off\ncache_log FOLDER/cache.log\npid_filename FOLDER/pid\ncoredump_dir FOLDER\nicon_directory FOLDER\nnetdb_filename none\npinger_enable off\nshutdown_lifetime 0\n",
        address.port()
    );
    // Started as root, it becomes another user. With -N it is one process, which leaves its shared memory behind if killed.
    let script = "chmod 777 .; rm -f /dev/shm/replaytest-*; exec \"$0\" -N -n replaytest -f squid.conf";
    let squid = std::env::var("SQUID").unwrap_or_else(|_| "/usr/sbin/squid".to_owned());
    let program = start("SHELL_OF_TESTS", "/bin/sh", "squid.conf", &configuration, &["-c", script, &squid]);
    check(program, "access.log", "", "Squid log", "127.0.0.1");
}

/// Starts a server that replies to everything, and returns its address.
fn backend() -> std::net::SocketAddr {
    let backend = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = backend.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in backend.incoming().flatten() {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
        }
    });
    address
}

#[test]
fn haproxy() {
    let configuration = "global\n log stdout format raw local0\ndefaults\n mode http\n log global\n option httplog\n timeout client 9s\n timeout connect 9s\n timeout server 9s
frontend edge\n bind 127.0.0.1:PORT\n http-request return status 200\n";
    let program = start("HAPROXY", "/usr/sbin/haproxy", "haproxy.cfg", configuration, &["-f", "haproxy.cfg"]);
    check(program, "out", "", "HAProxy log", "127.0.0.1");
}

#[test]
fn caddy() {
    let configuration = "{\n admin off\n auto_https off\n}\nhttp://127.0.0.1:PORT, http://example:PORT {\n log {\n output file FOLDER/access.log\n }\n respond ok\n}\n";
    let program = start("CADDY", "caddy", "Caddyfile", configuration, &["run", "--config", "Caddyfile"]);
    check(program, "access.log", "Authorization: secret\r\n", "JSON", "127.0.0.1");
}

#[test]
fn traefik_by_default_and_in_json() {
    let address = backend();
    let routes = format!("http: {{routers: {{all: {{rule: 'PathPrefix(`/`)', service: backend}}}}, services: {{backend: {{loadBalancer: {{servers: [{{url: 'http://{address}'}}]}}}}}}}}");
    for (format, format_is) in [("common", COMMON), ("json", "JSON")] {
        let configuration = "PORT".replace("PORT", &routes);
        let (program, port) = start_traefik(&configuration, format);
        // It listens before it has read its routes.
        let deadline = Instant::now() + PATIENCE;
        while ask(port, "") != "200" {
            assert!(Instant::now() < deadline, "no route");
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = program.folder.path().join("access.log");
        while !read(&log).contains("/path") {
            assert!(Instant::now() < deadline, "no log");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::File::options().write(true).open(log).and_then(|log| log.set_len(0)).expect("a file");
        check((program, port), "access.log", "", format_is, "127.0.0.1");
    }
}

fn start_traefik(routes: &str, format: &str) -> (Program, u16) {
    let file = format!(
        "entryPoints: {{edge: {{address: '127.0.0.1:PORT'}}}}\nproviders: {{file: {{filename: FOLDER/routes.yml}}}}\naccessLog: {{filePath: FOLDER/access.log, format: {format}}}\n\
         global: {{checkNewVersion: false, sendAnonymousUsage: false}}\n# {routes}"
    );
    let script = "sed -n 's/^# //p' traefik.yml >routes.yml; exec \"$0\" --configFile=traefik.yml";
    let traefik = std::env::var("TRAEFIK").unwrap_or_else(|_| "traefik".to_owned());
    start("SHELL_OF_TESTS", "/bin/sh", "traefik.yml", &file, &["-c", script, &traefik])
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
        check(program, "access.log", headers, format_is, client);
    }
}
