{-# LANGUAGE OverloadedStrings #-}

import Database.Redis
import System.Environment (lookupEnv)

main :: IO ()
main = do
  port <- maybe 6379 read <$> lookupEnv "REDIS_PORT"
  conn <- checkedConnect defaultConnectInfo {connectHost = "127.0.0.1", connectPort = PortNumber port}

  decision <- runRedis conn $ sendRequest ["TB.TAKE", "user:42", "5", "5/10s"]

  case decision :: Either Reply [Integer] of
    Right [allowed, remaining, retryAfterMs, resetAfterMs] ->
      putStrLn $
        "allowed=" ++ show allowed
          ++ " remaining=" ++ show remaining
          ++ " retry_after_ms=" ++ show retryAfterMs
          ++ " reset_after_ms=" ++ show resetAfterMs
    other -> fail (show other)
