package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/skepkv/skep"
)

// Socket is the socket's name in a store's directory.
const Socket = "admin.sock"

// Timeout is how long a view may take, and each end may keep the other waiting.
const Timeout = 5 * time.Second

const (
	maxConns = 8
	maxLine  = 16 << 10 // longest line a client may send
	refusing = 100 * time.Millisecond
)

// refusal is told instead of an answer where as many ask as may.
type refusal struct {
	Busy int `json:"busy"` // connections that are taken: all
}

// Requests are what can be asked for, by the word that the line begins with.
type Requests struct {
	// Views are answered at once. One that fails is not answered.
	Views map[string]func(ctx context.Context) (any, error)
	// Calls take a request's JSON and give the answer, an error included: Call makes them.
	Calls map[string]func(ctx context.Context, request []byte) any
	// Known is what a client that asks for something else is told that there is.
	Known string
}

// Answer is what came of a call. Result is there with an error, too, as far as it went.
type Answer[R any] struct {
	Result R         `json:"result"`
	Kind   skep.Kind `json:"kind"` // of the error
	Error  string    `json:"error,omitempty"`
}

// Call makes a call of f: its answer is an Answer[R].
func Call[R, Q any](f func(context.Context, Q) (R, error)) func(ctx context.Context, request []byte) any {
	return func(ctx context.Context, request []byte) any {
		var q Q
		var out Answer[R]
		err := Decode(request, &q)
		if err == nil {
			out.Result, err = f(ctx, q)
		}
		out.Kind, out.Error = Tell(err)
		return out
	}
}

// Decode reads a request. Error: Invalid.
func Decode(request []byte, into any) error {
	if err := json.Unmarshal(request, into); err != nil {
		return skep.Invalidf("ask store", "request", string(request), fmt.Sprintf("JSON of a %T", into))
	}
	return nil
}

// Tell is an error as an answer has it.
func Tell(err error) (kind skep.Kind, text string) {
	if err == nil {
		return kind, ""
	}
	return skep.KindOf(err), err.Error()
}

// Server answers on a socket.
type Server struct {
	requests Requests
	l        net.Listener
	conns    chan struct{} // room for one a connection
	done     sync.WaitGroup
	ctx      context.Context // of calls; ends with the socket
	cancel   context.CancelFunc
}

// MaxPath is the longest path of a Unix socket, in bytes.
const MaxPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// Fits says whether the socket in dir can have its name.
func Fits(dir string) bool { return len(filepath.Join(dir, Socket)) <= MaxPath }

// Listen serves requests on the socket in dir, in the place of one that a dead process has left there.
// REQUIRES: nobody else serves in dir.
func Listen(dir string, requests Requests) (*Server, error) {
	path := filepath.Join(dir, Socket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, &skep.Error{Op: "open store", Kind: skep.Other, Field: "admin socket", Value: path, Err: err}
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		if l != nil {
			l.Close()
		}
		return nil, &skep.Error{Op: "open store", Kind: skep.Other, Field: "admin socket", Value: path, Limit: "a path of at most 107 bytes on a file system with sockets", Err: err}
	}
	a := &Server{requests: requests, l: l, conns: make(chan struct{}, maxConns)}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.done.Go(a.accept)
	return a, nil
}

// userMay says whether a user may ask: root, and whose store it is.
func userMay(uid, own uint32) bool { return uid == 0 || uid == own }

func (a *Server) accept() {
	for {
		c, err := a.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		if !peerMay(c) {
			_ = c.Close()
			continue
		}
		select {
		case a.conns <- struct{}{}:
			a.done.Go(func() {
				defer func() { <-a.conns }()
				defer c.Close()
				a.serve(c)
			})
		default: // enough look on
			if c.SetDeadline(time.Now().Add(refusing)) == nil {
				_ = json.NewEncoder(c).Encode(refusal{maxConns})
			}
			c.Close()
		}
	}
}

func (a *Server) serve(c net.Conn) {
	if err := c.SetDeadline(time.Now().Add(Timeout)); err != nil {
		return
	}
	line, err := bufio.NewReaderSize(c, maxLine).ReadSlice('\n')
	if err != nil {
		return
	}
	what, request, _ := bytes.Cut(line, []byte(" "))
	if f := a.requests.Calls[string(what)]; f != nil {
		a.serveCall(c, request, f)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	word := strings.TrimSpace(string(line))
	view := a.requests.Views[word]
	if view == nil {
		_ = json.NewEncoder(c).Encode(map[string]string{"error": "asked for " + word + ", must be " + a.requests.Known})
		return
	}
	if answer, err := view(ctx); err == nil {
		_ = json.NewEncoder(c).Encode(answer)
	}
}

// serveCall carries a request out, for as long as that takes and the client waits.
func (a *Server) serveCall(c net.Conn, request []byte, f func(context.Context, []byte) any) {
	if c.SetDeadline(time.Time{}) != nil {
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	a.done.Go(func() { // ends when the client hangs up, or the connection is closed
		_, _ = c.Read(make([]byte, 1))
		cancel()
	})
	out := f(ctx, request)
	if c.SetDeadline(time.Now().Add(Timeout)) == nil {
		_ = json.NewEncoder(c).Encode(out)
	}
	c.Close()
}

// Close ends the socket and what its calls do.
func (a *Server) Close() {
	if a == nil {
		return
	}
	a.l.Close() // removes the socket
	a.cancel()
	a.done.Wait()
}
