use std::env;

fn main() -> redis::RedisResult<()> {
    let port = env::var("REDIS_PORT").unwrap_or_else(|_| "6379".into());
    let mut con = redis::Client::open(format!("redis://127.0.0.1:{port}/"))?.get_connection()?;

    let decision: [i64; 4] = redis::cmd("TB.TAKE").arg(&["user:42", "5", "5/10s"]).query(&mut con)?;

    let [allowed, remaining, retry_after_ms, reset_after_ms] = decision;
    println!("allowed={allowed} remaining={remaining} retry_after_ms={retry_after_ms} reset_after_ms={reset_after_ms}");
    Ok(())
}
