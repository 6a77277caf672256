package resp

import (
	"net"
	"reflect"
	"testing"
	"time"

	"tokenbucket"
)

// What has arrived of a reply is kept, wherever reading is interrupted.
func TestInterruptedAnywhere(t *testing.T) {
	conn, server := net.Pipe()
	defer server.Close()
	pipe, err := NewPipe(conn, conn.Close)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	go func() {
		for _, one := range []byte("*3\r\n:1\r\n:-20\r\n*1\r\n:300\r\n-ERR no\r\n:4\r\n") {
			pipe.(tokenbucket.InterruptiblePipe).Interrupt()
			_, _ = server.Write([]byte{one})
		}
	}()
	interrupted := 0
	receive := func() (any, error) {
		for {
			reply, err := pipe.Receive()
			if err != tokenbucket.ErrInterrupted {
				return reply, err
			}
			interrupted++
		}
	}
	if got, err := receive(); err != nil || !reflect.DeepEqual(got, []any{int64(1), int64(-20), []any{int64(300)}}) {
		t.Fatal(got, err)
	}
	if _, err := receive(); err == nil || err.Error() != "ERR no" {
		t.Fatal(err)
	}
	if got, err := receive(); err != nil || got != int64(4) || interrupted == 0 {
		t.Fatal(got, err, interrupted)
	}
}

func TestRepliesThatDoNotFitTheBuffer(t *testing.T) {
	conn, server := net.Pipe()
	defer server.Close()
	pipe, _ := NewPipe(conn, conn.Close)
	defer pipe.Close()
	want := make([]any, 5000)
	reply := []byte("*5000\r\n")
	for i := range want {
		want[i] = int64(7)
		reply = append(reply, ":7\r\n"...)
	}
	go func() { _, _ = server.Write(append(reply, reply...)) }()
	for i := 0; i < 2; i++ {
		if got, err := pipe.Receive(); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatal(err)
		}
	}
}

func TestWhatIsNoReplyEndsThePipe(t *testing.T) {
	for _, text := range []string{"\r\n", "+OK\r\n", "$2\r\nab\r\n", "*-1\r\n", ":x\r\n", "*1\r\n-ERR no\r\n"} {
		conn, server := net.Pipe()
		pipe, _ := NewPipe(conn, conn.Close)
		go func(text string) { _, _ = server.Write([]byte(text)); server.Close() }(text)
		if reply, err := pipe.Receive(); err == nil || err == tokenbucket.ErrInterrupted {
			t.Errorf("%q: %v, %v", text, reply, err)
		}
	}
}

// undated is a connection without deadlines: a caller could not be called away from it.
type undated struct{ net.Conn }

func (undated) SetDeadline(time.Time) error { return net.ErrClosed }

func TestAConnectionWithoutDeadlinesIsNoPipe(t *testing.T) {
	conn, _ := net.Pipe()
	if _, err := NewPipe(undated{conn}, conn.Close); err == nil {
		t.Fatal("it is one")
	}
	if _, err := conn.Write(nil); err == nil {
		t.Fatal("it is open")
	}
}
