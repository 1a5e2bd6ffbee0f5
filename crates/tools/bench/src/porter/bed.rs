//! The surroundings of platforms: functions, their images, and initial states.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use farfork_platform::scheduler::snapshot::Image;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::functions::{self, Functions};
use super::platform::{Platform, PlatformConfig, open_directory};
use super::replay::{Replayed, replay};
use super::slow_pool::SlowPool;
use super::systems::{StartMode, System};
use super::trace::Trace;
use crate::error::{BenchError, io};
use crate::progress;
use crate::testbed::TempPool;

const POOL_BYTES: u64 = 3 << 30;
/// Space for the base image alone.
const SMALL_POOL_BYTES: u64 = 512 << 20;
/// Memory of each node while images are created.
const SET_UP_BYTES: u64 = 4 << 30;
/// Largest number of calls until a function has an image.
const WARM_CALLS: usize = 32;
/// Limit of the creation of an image.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The surroundings of the platforms.
pub struct PorterTestbed {
    root: PathBuf,
    functions: Functions,
    slow: Option<SlowPool>,
    runtime: Runtime,
    /// The pool with images of all functions.
    pool: TempPool,
    /// The pool with the base image alone.
    small: TempPool,
    /// States and sockets of platforms, in a directory that functions may enter.
    place: TempDir,
}

impl PorterTestbed {
    /// Creates everything except images. `is_slow` adds the model of a slow pool.
    pub fn new(root: PathBuf, is_slow: bool) -> Result<PorterTestbed, BenchError> {
        let place = open_directory()?;
        let file = place.path().join("slow-pool.json");
        let slow =
            is_slow.then(|| SlowPool::emulate(&root, &functions::names(), file)).transpose()?;
        let functions = Functions::load(&root, slow.as_ref())?;
        let (pool, small) = (TempPool::new(POOL_BYTES)?, TempPool::new(SMALL_POOL_BYTES)?);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io("start threads in", place.path()))?;
        Ok(PorterTestbed { root, functions, slow, runtime, pool, small, place })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn start(&self, system: &System, state: &Path, bytes: u64) -> Result<Platform, BenchError> {
        let pool = if system.has_images() { &self.pool } else { &self.small };
        Platform::start(&PlatformConfig {
            python: &self.root.join(".venv/bin/python"),
            pool: pool.pool.path(),
            state,
            run: &self.path("run"),
            node_bytes: bytes,
            policies: &system.policies,
        })
    }

    /// Deploys all functions, and has images created for the systems that start with images. A function
    /// that fails stops the benchmark here, and not after hours.
    pub fn set_up(&self, systems: &[System]) -> Result<(), BenchError> {
        for start_mode in StartMode::ALL {
            let Some(system) = systems.iter().find(|one| one.start_mode == start_mode) else {
                continue;
            };
            let state = state_of(start_mode);
            progress(&format!("setting functions up, {state}"));
            let platform = self.start(system, &self.path(state), SET_UP_BYTES)?;
            self.runtime.block_on(async {
                for (name, function) in self.functions.iter() {
                    platform.client.deploy(name, function.action(start_mode)).await?;
                }
                match system.has_images() {
                    true => self.warm(&platform).await,
                    false => self.call_each(&platform).await,
                }
            })?;
        }
        Ok(())
    }

    /// Calls each function until it has an image.
    async fn warm(&self, platform: &Platform) -> Result<(), BenchError> {
        for (name, _) in self.functions.iter() {
            for number in 0..WARM_CALLS {
                self.call_once(platform, name, number).await?;
                let seen = platform.client.snapshot().await?;
                match seen.functions.get(&format!("guest/{name}")).map(|function| function.image) {
                    Some(Image::Ready) => break,
                    Some(Image::Making) => self.await_image(platform, name).await?,
                    _ => {}
                }
            }
            self.await_image(platform, name).await?;
        }
        Ok(())
    }

    async fn await_image(&self, platform: &Platform, name: &str) -> Result<(), BenchError> {
        let begun = Instant::now();
        while begun.elapsed() < IMAGE_TIMEOUT {
            let seen = platform.client.snapshot().await?;
            if seen.functions.get(&format!("guest/{name}")).is_some_and(|f| f.image == Image::Ready)
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let reason = format!("timed out after {} s", IMAGE_TIMEOUT.as_secs());
        Err(BenchError::Platform { doing: format!("creating an image of {name}"), reason })
    }

    async fn call_each(&self, platform: &Platform) -> Result<(), BenchError> {
        for (name, _) in self.functions.iter() {
            self.call_once(platform, name, 0).await?;
        }
        Ok(())
    }

    async fn call_once(
        &self,
        platform: &Platform,
        name: &str,
        number: usize,
    ) -> Result<(), BenchError> {
        let doing = || format!("calling {name}");
        let Some(example) = self.functions.example(name, number) else { return Ok(()) };
        let answer = platform.client.call(name, &example.args).await;
        let answer = answer.map_err(|reason| BenchError::Platform { doing: doing(), reason })?;
        let result = &answer.document()["response"]["result"];
        match answer.status == 200 && example.is_answered_by(result) {
            true => Ok(()),
            false => Err(BenchError::Platform { doing: doing(), reason: answer.describe() }),
        }
    }

    /// Replays one trace on a new platform with the initial state of the system.
    pub fn replay(
        &self,
        system: &System,
        bytes: u64,
        trace: &Trace,
    ) -> Result<Replayed, BenchError> {
        let begin = self.path(state_of(system.start_mode));
        let state = self.path("state");
        copy(&begin, &state)?;
        if let Some(slow) = &self.slow {
            slow.write_delays(system)?;
        }
        let platform = self.start(system, &state, bytes)?;
        let replayed = self.runtime.block_on(async {
            self.call_each(&platform).await?;
            replay(&platform.client, trace, &self.functions).await
        });
        drop(platform);
        fs::remove_dir_all(&state).map_err(io("remove", &state))?;
        replayed
    }
}

/// The directory of an initial state.
fn state_of(start_mode: StartMode) -> &'static str {
    match start_mode {
        StartMode::Image => "with-images",
        StartMode::BaseImage => "without",
        StartMode::Program => "in-containers",
    }
}

/// Copies a directory with owners, modes and times.
fn copy(from: &Path, to: &Path) -> Result<(), BenchError> {
    let copied = Command::new("cp").arg("--archive").arg(from).arg(to).status();
    let copied = copied.map_err(io("copy", from))?;
    let failed = || std::io::Error::other("cp failed, see its output");
    if copied.success() { Ok(()) } else { Err(io("copy", from)(failed())) }
}
