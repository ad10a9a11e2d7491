//! A gateway process: the binary that was built, on free ports, gone when dropped.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The binary under test.
pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_tollgate");
/// A gateway reads all authorities of the system when it starts, which takes a sixth of the time of
/// a short test. No test needs them, so it gets one, which vouches for nobody.
const AUTHORITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/world/authority.pem");
/// A gateway that is not ready by then never is.
const START_WAIT: Duration = Duration::from_secs(60);
/// A call that takes longer has hung.
const CALL_WAIT: Duration = Duration::from_secs(30);
/// Below the ports that the system hands out, so that no connection takes one in between.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// See the module.
pub(crate) struct Process {
    child: Child,
    /// Where clients connect.
    pub(crate) http: String,
    /// Where scrapers do.
    pub(crate) admin: String,
    log: PathBuf,
}

/// Where a gateway listens.
pub(super) struct Addresses {
    pub(super) http: String,
    pub(super) admin: String,
}

impl Process {
    /// Starts the gateway of a folder's `tollgate.toml`, with these settings in the place of those
    /// that are there, and waits until it is ready.
    pub(super) async fn start(folder: &Path, name: &str, env: &[(&str, &str)]) -> Process {
        Process::start_as(folder, name, env, command).await
    }

    /// The same, with a command of its own.
    pub(super) async fn start_as(
        folder: &Path,
        name: &str,
        env: &[(&str, &str)],
        command: fn(&Path) -> Command,
    ) -> Process {
        let log = folder.join(format!("{name}.log"));
        // Another process may take a port before the gateway does, so a few are tried.
        for _ in 0..3 {
            let mut process = Process::serve(command(folder), &log, env);
            if process.ready().await {
                return process;
            }
        }
        panic!("the gateway does not start:\n{}", std::fs::read_to_string(log).unwrap_or_default());
    }

    /// Starts the gateway of a folder, and does not wait for it: it may end before it is ready.
    pub(super) fn start_doomed(folder: &Path, name: &str, env: &[(&str, &str)]) -> Process {
        Process::serve(command(folder), &folder.join(format!("{name}.log")), env)
    }

    fn serve(mut command: Command, log: &Path, env: &[(&str, &str)]) -> Process {
        let address = || format!("127.0.0.1:{}", free_port());
        command.envs(env.iter().copied()).arg("serve");
        Process::spawn(command, log, Addresses { http: address(), admin: address() })
    }

    /// Starts another gateway of the folder in the place of one that runs, and waits until it is
    /// there.
    pub(super) fn take_over(
        folder: &Path,
        name: &str,
        env: &[(&str, &str)],
        addresses: Addresses,
    ) -> impl Future<Output = Process> + use<> {
        let log = folder.join(format!("{name}.log"));
        let mut started = command(folder);
        started.envs(env.iter().copied()).args(["serve", "--upgrade"]);
        async move {
            let mut process = Process::spawn(started, &log, addresses);
            let end = Instant::now() + START_WAIT;
            while !process.log().contains("serving") {
                assert!(process.is_running() && Instant::now() < end, "{}", process.log());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            process
        }
    }

    /// What is set in the environment of the command already wins over these addresses.
    fn spawn(mut command: Command, log: &Path, addresses: Addresses) -> Process {
        let Addresses { http, admin } = addresses;
        let set: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        for (name, address) in
            [("TOLLGATE__LISTEN__HTTP", &http), ("TOLLGATE__LISTEN__ADMIN", &admin)]
        {
            if !set.iter().any(|known| known == name) {
                command.env(name, address);
            }
        }
        let child = command
            .stderr(File::create(log).expect("the gateway's log"))
            .spawn()
            .expect("the gateway");
        Process { child, http, admin, log: log.to_owned() }
    }

    async fn ready(&mut self) -> bool {
        let url = format!("http://{}/readyz", self.admin);
        let client = client(None);
        let end = Instant::now() + START_WAIT;
        while Instant::now() < end && self.is_running() {
            let asked = client.get(&url).timeout(Duration::from_secs(1)).send().await;
            // Some worlds have no route at all, which /readyz does not call ready.
            if let Ok(answer) = asked
                && says_ready(&answer.text().await.unwrap_or_default())
                && tokio::net::TcpStream::connect(&self.http).await.is_ok()
            {
                return self.is_running();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its number among the processes of this machine.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "the gateway takes no {name}");
    }

    /// Waits until it has ended by itself, and tells when; panics when `limit` passed first.
    pub(crate) async fn ended(&mut self, limit: Duration) -> Instant {
        let end = Instant::now() + limit;
        while self.is_running() {
            assert!(Instant::now() < end, "the gateway still runs:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Instant::now()
    }

    /// The number of the signal that has ended it, if one has.
    pub(crate) fn ended_by(&mut self) -> Option<i32> {
        self.child.try_wait().ok().flatten()?.signal()
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it wrote to its log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What its `/metrics` says.
    pub(crate) async fn metrics(&self, client: &reqwest::Client) -> String {
        let answer = client.get(format!("http://{}/metrics", self.admin)).send().await;
        answer.expect("metrics").text().await.expect("metrics are text")
    }
}

/// Who does not ask with the token hears no more than that.
fn says_ready(told: &str) -> bool {
    told.contains(r#""ledger":"ok""#) || told == r#"{"ready":true}"#
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("what the gateway {} wrote:\n{}", self.http, self.log());
        }
    }
}

/// The binary with the configuration of a folder, and nothing of the tests' own environment.
pub(super) fn command(folder: &Path) -> Command {
    of_folder(Command::new(BINARY), folder)
}

fn of_folder(mut command: Command, folder: &Path) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TOLLGATE__")) {
        command.env_remove(name);
    }
    command.env("SSL_CERT_FILE", AUTHORITY).env_remove("SSL_CERT_DIR");
    command.arg("--conf").arg(folder.join("tollgate.toml"));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// The same, but that a file which must not grow is an error like any other.
pub(super) fn undaunted(folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", BINARY]);
    of_folder(command, folder)
}

/// A client of HTTP. The library has the same TLS as the gateway, which brings its own arithmetic.
/// It speaks TLS only with those whom this authority vouches for.
pub(super) fn client(authority: Option<&str>) -> reqwest::Client {
    // Only fails if that is done already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |pem: &str| reqwest::Certificate::from_pem(pem.as_bytes()).expect("PEM");
    let builder = reqwest::Client::builder().tls_certs_only(authority.map(read));
    builder.timeout(CALL_WAIT).build().expect("a client")
}

/// The base url of a vendor that takes no connection.
pub(crate) fn closed_port() -> String {
    format!("http://127.0.0.1:{}/v1", free_port())
}

/// A port of this machine where nobody listens.
fn free_port() -> u16 {
    use std::hash::{BuildHasher, RandomState};
    loop {
        let random = RandomState::new().hash_one(std::process::id());
        let width = u64::from(PORTS.end - PORTS.start);
        let port = PORTS.start + u16::try_from(random % width).expect("a port has 16 bits");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
