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

// usageError is wrong input: one line, no usage wall.
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

// quiet keeps go-redis from logging each dial that fails: this program prints its errors itself.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(quiet{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	err := run(ctx, os.Args[1:])
	var wrong usageError
	switch {
	case err == nil:
	case errors.As(err, &wrong):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "interrupted")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usageError{usage}
	}
	switch args[0] {
	case "burst":
		return burst(ctx, args[1:], os.Stdout)
	case "worker":
		return worker(ctx, args[1:], os.Stdout)
	}
	return usageError{usage}
}

// newFlags makes parse errors ours to print, once.
func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// parse prints the flags when they are asked for, and takes no argument that is not a flag.
func parse(flags *flag.FlagSet, args []string) error {
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(os.Stdout)
		flags.PrintDefaults()
		os.Exit(0)
	}
	if err != nil {
		return usageError{flags.Name() + ": " + err.Error()}
	}
	if flags.NArg() > 0 {
		return usageError{fmt.Sprintf("%s: unexpected argument %q", flags.Name(), flags.Arg(0))}
	}
	return nil
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
