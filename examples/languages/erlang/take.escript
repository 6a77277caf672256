#!/usr/bin/env escript

main(_) ->
    Port = list_to_integer(os:getenv("REDIS_PORT", "6379")),
    {ok, Client} = eredis:start_link("127.0.0.1", Port),

    {ok, Decision} = eredis:q(Client, ["TB.TAKE", "user:42", 5, "5/10s"]),

    %% eredis hands integers over as binaries.
    [Allowed, Remaining, RetryAfterMs, ResetAfterMs] = [binary_to_integer(N) || N <- Decision],
    io:format("allowed=~b remaining=~b retry_after_ms=~b reset_after_ms=~b~n",
              [Allowed, Remaining, RetryAfterMs, ResetAfterMs]).
