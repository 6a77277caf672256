// Goroutines on a pooled client against one token bucket (burst), and workers that pace themselves (worker).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
)

const usage = `usage:
  tokenbucket-example burst  [flags]   many goroutines ask for one bucket: is more granted than it holds?
  tokenbucket-example worker [flags]   workers that share a limit reserve their turn
  (burst -h, worker -h: the flags)`

// quiet keeps go-redis from logging each dial that fails: this program prints its errors itself.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(quiet{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	programs := map[string]func(context.Context, []string, io.Writer) error{"burst": burst, "worker": worker}
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	err := programs[os.Args[1]](ctx, os.Args[2:], os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "interrupted")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// parse ends the program if a flag is wrong, and takes no argument that is not a flag.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil || flags.NArg() == 0 {
		return err
	}
	return fmt.Errorf("%s: unexpected argument %q", flags.Name(), flags.Arg(0))
}

// defaultAddress is REDIS_ADDR, or where a server listens that was started without options.
func defaultAddress() string {
	if address := os.Getenv("REDIS_ADDR"); address != "" {
		return address
	}
	return "127.0.0.1:6379"
}

// newClient connects lazily: a server that is away is an error of the first call, not of this one. At most maxConnections
// are open; callers beyond that wait for one that is free.
func newClient(address string, maxConnections int) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, PoolSize: maxConnections, PoolTimeout: time.Minute})
}

// retryWhenAway is how soon a server that is away is asked again. Well under a second, so that work goes on soon.
const retryWhenAway = 100 * time.Millisecond

// newLimiter lets nothing through unseen: without the server, both programs have something better to do.
func newLimiter(client *redis.Client, limit tokenbucket.Limit, log tokenbucket.ServerOption) (*tokenbucket.Limiter, error) {
	doer, err := goredis.From(client)
	if err != nil {
		return nil, err
	}
	server := tokenbucket.NewServer(doer, tokenbucket.Timeout(time.Second), tokenbucket.RetryEvery(retryWhenAway), log)
	return tokenbucket.NewLimiter(server, limit, tokenbucket.Prefix(""), tokenbucket.OnError(tokenbucket.FailWithError)), nil
}
