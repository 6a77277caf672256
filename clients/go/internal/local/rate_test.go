package local

import (
	"math/big"
	"testing"
	"time"
)

func TestRates(t *testing.T) {
	for rate, want := range map[string]string{
		"5": "5", "0.25": "1/4", "1e-3": "1/1000", "100/m": "5/3", "10/10s": "1", "1/250ms": "4", "0": "0",
		"1000@d": "5/432", "1000@d+09:00": "5/432", "5@10s": "1/2", "30@mo": "1/86400", "30@mo+14d": "1/86400", "90@3mo-05:00": "1/86400",
	} {
		if got := rateOf(rate); got == nil || new(big.Rat).Mul(got.flow, nanoseconds(time.Second)).RatString() != want {
			t.Errorf("%s: %v; want %s a second", rate, got, want)
		}
	}
	for _, rate := range []string{"", "fast", "-1", "1/", "1/fortnight", "1/0s", "1@", "1@d+9", "1e99999", "0x10", "1_0", "1/2",
		"0/m", "0@d", "1e-10", "1e13", "1@99999999d", "1@d+14:01", "1@d+05:60"} {
		if got := rateOf(rate); got != nil {
			t.Errorf("%s: %v", rate, got)
		}
	}
}

func TestADebtThatLastsForeverIsADenial(t *testing.T) {
	for _, rate := range []string{"1@y", "1@d", "1/36500d", "1/h"} {
		s := NewStore(0)
		for _, words := range [][]any{{"TB.CHARGE", "k", "1", rate, "1e12"}, {"TB.TAKE", "k", "1", rate}} {
			if reply, err := s.Do(0, words...); err != nil || reply.([]any)[2].(int64) < 1e12 {
				t.Errorf("%v: %v, %v", words, reply, err)
			}
		}
		if reply, err := s.Do(0, "TB.CHARGE", "k", 1, rate, "1e12"); err == nil {
			t.Errorf("twice of %s: %v", rate, reply)
		}
	}
}

func TestCommandsWithTooFewArgumentsAreErrors(t *testing.T) {
	for name, command := range commands {
		if reply, err := NewStore(0).Do(0, append([]any{name}, make([]any, command.fewest-1)...)...); err == nil {
			t.Errorf("%s: %v", name, reply)
		}
	}
}
