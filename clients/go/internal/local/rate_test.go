package local

import "testing"

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
