//! A Redis of the tests' own: on a free port, in a folder of its own, gone with its last user.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server that is not up by then never comes up.
const START_WAIT: Duration = Duration::from_secs(60);
/// A cluster node listens on its port plus 10,000 as well.
const PORT_MAX: u16 = 55_000;
/// Sweeps end holds of all accounts, so every test has a database of its own on a shared server.
const DATABASES: u32 = 4_096;

/// The address of a server that all processes share, with ten thousand databases.
const SHARED_URL: &str = "TOLLGATE_TEST_REDIS_URL";
/// Of these the tests of clients have the first.
const SHARED_DATABASES: std::ops::Range<u32> = 2_000..10_000;
/// The key in its first database that counts those in use.
const DATABASE_COUNT: &str = "tollgate-tests:databases";

/// What a Redis must be set to for a ledger.
const SAFE: [&str; 8] = [
    "--save",
    "",
    "--appendonly",
    "yes",
    "--appendfsync",
    "everysec",
    "--maxmemory-policy",
    "noeviction",
];

/// With less than this free in memory, in bytes, its folder is on the disk.
const MEMORY_MIN: u64 = 4 << 30;

/// Where in its folder it writes what it is told.
const WRITTEN: &str = "appendonlydir";

/// A running `redis-server`.
pub(crate) struct RedisServer {
    child: Option<Child>,
    port: u16,
    folder: TempDir,
    settings: Vec<String>,
    databases: Databases,
}

/// Those of a server that nobody has used.
enum Databases {
    /// This process alone counts them.
    Own(AtomicU32),
    /// The server counts them, for all processes.
    Shared,
}

impl RedisServer {
    /// The server that all tests share, or those of this process while any of them runs.
    pub(crate) fn shared() -> Arc<RedisServer> {
        static SHARED: Mutex<Weak<RedisServer>> = Mutex::new(Weak::new());
        if let Ok(url) = std::env::var(SHARED_URL) {
            let port = url.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            return Arc::new(RedisServer {
                child: None,
                port: port.unwrap_or_else(|| panic!("{SHARED_URL} has no port: {url}")),
                folder: TempDir::new().expect("a folder"),
                settings: Vec::new(),
                databases: Databases::Shared,
            });
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let server = Arc::new(RedisServer::start());
        *shared = Arc::downgrade(&server);
        server
    }

    /// A server that is set up as a ledger wants it.
    pub(crate) fn start() -> RedisServer {
        RedisServer::start_with(&[])
    }

    /// A server with other settings, such as `["--appendonly", "no"]`; they come last and so win.
    pub(crate) fn start_with(settings: &[&str]) -> RedisServer {
        let databases = DATABASES.to_string();
        let safe = SAFE.into_iter().chain(["--databases", &databases]);
        // A cluster has one database and says so when asked for more.
        let clustered = settings.contains(&"--cluster-enabled");
        let safe = safe.take(if clustered { SAFE.len() } else { SAFE.len() + 2 });
        let settings: Vec<_> = safe.chain(settings.iter().copied()).map(str::to_owned).collect();
        RedisServer::boot(&settings, None)
    }

    /// A cluster of one node.
    pub(crate) fn start_cluster() -> RedisServer {
        let node = RedisServer::start_with(&["--cluster-enabled", "yes"]);
        node.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let end = Instant::now() + START_WAIT;
        while !format!("{:?}", node.command(&["CLUSTER", "INFO"])).contains("cluster_state:ok") {
            assert!(Instant::now() < end, "the cluster does not come up");
            sleep(Duration::from_millis(20));
        }
        node
    }

    /// A Sentinel that watches `master` under the name `mymaster`.
    pub(crate) fn start_sentinel(master: &RedisServer) -> RedisServer {
        RedisServer::start_sentinel_with(master.port, "")
    }

    /// A Sentinel that watches what has this port, with more settings, as lines.
    pub(crate) fn start_sentinel_with(port: u16, more: &str) -> RedisServer {
        let conf = format!("sentinel monitor mymaster 127.0.0.1 {port} 1\n{more}");
        RedisServer::boot(&["--sentinel".to_owned()], Some(&conf))
    }

    fn boot(settings: &[String], conf: Option<&str>) -> RedisServer {
        // Another process may take the port before the server does, so a few are tried.
        for _ in 0..5 {
            let folder = new_folder();
            if let Some(conf) = conf {
                std::fs::write(folder.path().join("redis.conf"), conf).expect("redis.conf");
            }
            let (port, settings) = (free_port(), settings.to_vec());
            let databases = Databases::Own(AtomicU32::new(1));
            let mut server = RedisServer { child: None, port, folder, settings, databases };
            if server.come_up() {
                return server;
            }
        }
        panic!("redis-server does not start; is it installed?");
    }

    /// Starts it after [`RedisServer::stop`], on the same port and files; `false` if it will not.
    pub(crate) fn start_again(&mut self) -> bool {
        let end = Instant::now() + START_WAIT;
        // Somebody's connection may go out from its port just then.
        while !self.come_up() {
            if Instant::now() >= end {
                return false;
            }
            sleep(Duration::from_millis(50));
        }
        true
    }

    fn come_up(&mut self) -> bool {
        let log = File::create(self.folder.path().join("log")).expect("Redis' log");
        let conf = self.folder.path().join("redis.conf");
        let mut command = Command::new("redis-server");
        command.args(conf.exists().then_some(conf));
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir"]);
        command.arg(self.folder.path()).args(&self.settings);
        command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(log);
        self.child =
            Some(command.spawn().expect("redis-server (Debian: apt install redis-server)"));
        let end = Instant::now() + START_WAIT;
        while Instant::now() < end {
            let exited = self.child.as_mut().is_some_and(|c| !matches!(c.try_wait(), Ok(None)));
            if exited {
                return false;
            }
            // Whoever answers must be ours: another's server may have the port by now. It answers
            // this before it has read its files, and then refuses all else.
            let own = self.child.as_ref().map(|c| format!("process_id:{}", c.id()));
            let told = self.try_command(&["INFO"]).map(|info| format!("{info:?}"));
            let ready = |told: &str| !told.contains("loading:1");
            if matches!((own, told), (Some(own), Ok(told)) if told.contains(&own) && ready(&told)) {
                return true;
            }
            sleep(Duration::from_millis(5));
        }
        false
    }

    /// Kills it as a power cut would.
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only if it is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends it a signal such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.as_ref().expect("a running server").id().to_string();
        let sent = Command::new("kill").args(["-s", name, &process]).status();
        assert!(sent.is_ok_and(|status| status.success()), "Redis takes no {name}");
    }

    /// Waits until it has written all that it was told by now. With a busy disk it puts that off.
    pub(crate) fn has_written(&self) {
        let waits = |info: &str| {
            let none = ["aof_buffer_length:0", "aof_pending_bio_fsync:0"];
            none.iter().any(|none| !info.contains(none))
        };
        while waits(&format!("{:?}", self.command(&["INFO", "persistence"]))) {
            sleep(Duration::from_millis(5));
        }
    }

    /// A copy of what it was told by now.
    pub(crate) fn copy(&self) -> TempDir {
        self.has_written();
        let copy = new_folder();
        copy_files(&self.folder.path().join(WRITTEN), copy.path());
        copy
    }

    /// Kills it, and starts it as it was when that copy was made: all that came after is lost.
    pub(crate) fn fall_back_to(&mut self, copy: &TempDir) {
        self.stop();
        let written = self.folder.path().join(WRITTEN);
        std::fs::remove_dir_all(&written).expect("what it has written");
        std::fs::create_dir(&written).expect("a folder");
        copy_files(copy.path(), &written);
        assert!(self.start_again(), "Redis does not start from its copy");
    }

    /// Kills it, and cuts its log off within the last operation that says this word, right before
    /// that ends, as a power cut may.
    pub(crate) fn tear_log(&mut self, word: &str) {
        self.has_written();
        self.stop();
        let folder = self.folder.path().join(WRITTEN);
        let files = std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("a file").path());
        for file in files.filter(|file| file.to_string_lossy().contains(".incr.")) {
            let log = std::fs::read(&file).expect("the log");
            let said = log.windows(word.len()).rposition(|bytes| bytes == word.as_bytes());
            if let Some(said) = said {
                let end = log[said..].windows(4).position(|bytes| bytes == b"EXEC");
                let file = File::options().write(true).open(&file).expect("the log");
                file.set_len((said + end.expect("its end") + 2) as u64).expect("it is shorter");
            }
        }
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its address as a store's `url`.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The address of a cluster of which this is a node.
    pub(crate) fn cluster_url(&self) -> String {
        format!("redis-cluster://127.0.0.1:{}", self.port)
    }

    /// The address of a database that nobody else has used.
    pub(crate) fn fresh_url(&self) -> String {
        let database = match &self.databases {
            Databases::Own(next) => {
                let database = next.fetch_add(1, Ordering::Relaxed);
                assert!(database < DATABASES, "the shared Redis has run out of databases");
                database
            }
            Databases::Shared => {
                let redis::Value::Int(used) = self.command(&["INCR", DATABASE_COUNT]) else {
                    panic!("the shared Redis does not count");
                };
                let mut free = SHARED_DATABASES.skip(usize::try_from(used).expect("a count"));
                free.next().expect("the shared Redis has run out of databases")
            }
        };
        format!("{}/{database}", self.url())
    }

    /// Says something to it.
    pub(crate) fn command(&self, words: &[&str]) -> redis::Value {
        self.try_command(words).unwrap_or_else(|why| panic!("{words:?}: {why}"))
    }

    /// A connection to it.
    pub(crate) fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("an address");
        client.get_connection().expect("a connection")
    }

    /// Says something to it, which it may not take.
    pub(crate) fn try_command(&self, words: &[&str]) -> redis::RedisResult<redis::Value> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A folder in memory, where there is room. What survives a killed server survives there as well,
/// and a disk that is busy with other tests holds no answer up.
fn new_folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    let made = if free < MEMORY_MIN { TempDir::new() } else { TempDir::new_in(memory) };
    made.expect("a folder for Redis")
}

fn copy_files(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).expect("what was written") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}

pub(crate) fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        if port <= PORT_MAX {
            return port;
        }
    }
}
