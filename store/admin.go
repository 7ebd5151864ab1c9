package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// AdminSocket is the name, in a store's directory, of the Unix socket through which other
// processes of the same user see it at work (Options.Admin).
const AdminSocket = "admin.sock"

// admin answers on the socket: a client sends one line, gets one JSON document and is
// hung up on. Of these only device changes something.
//
//	stats   skep.Stats
//	log     the last lines of the store's log, []string
//	options the options it was opened with, by name
//	device  followed by a DeviceRequest: a DeviceAnswer, once it is done; a client that hangs
//	        up ends it
type admin struct {
	s      *Store
	l      net.Listener
	conns  chan struct{} // room for one a connection
	done   sync.WaitGroup
	ctx    context.Context // of what changes something; ends with the socket
	cancel context.CancelFunc
}

const (
	adminConns   = 8
	adminTimeout = 5 * time.Second
	adminLine    = 16 << 10 // longest line a client may send
)

// DeviceRequest asks an open store to change its devices.
type DeviceRequest struct {
	Action string `json:"action"`           // add, drain, remove or rebalance
	Device string `json:"device,omitempty"` // to be drained or removed, as DrainDevice has it
	Path   string `json:"path,omitempty"`   // to be added
	Bytes  int64  `json:"bytes,omitempty"`  // of a file that is added
	Rate   int64  `json:"rate,omitempty"`   // bytes a second to move; 0: as the drives are idle
	DryRun bool   `json:"dry_run,omitempty"`
	Force  bool   `json:"force,omitempty"` // of remove
}

// DeviceAnswer is what came of it.
type DeviceAnswer struct {
	Moved Progress  `json:"moved"`
	Kind  skep.Kind `json:"kind"` // of the error
	Error string    `json:"error,omitempty"`
}

func (s *Store) startAdmin() (*admin, error) {
	path := filepath.Join(s.options.Dir, AdminSocket)
	// The store's lock is ours: a socket that is there is a dead process's.
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
	a := &admin{s: s, l: l, conns: make(chan struct{}, adminConns)}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	go0(&a.done, a.accept)
	return a, nil
}

// userMay says whether a user may ask: root, and whose store it is.
func userMay(uid, own uint32) bool { return uid == 0 || uid == own }

func (a *admin) accept() {
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
			go0(&a.done, func() {
				defer func() { <-a.conns }()
				defer c.Close()
				a.serve(c)
			})
		default: // enough look on
			c.Close()
		}
	}
}

func (a *admin) serve(c net.Conn) {
	if err := c.SetDeadline(time.Now().Add(adminTimeout)); err != nil {
		return
	}
	line, err := bufio.NewReaderSize(c, adminLine).ReadSlice('\n')
	if err != nil {
		return
	}
	if body, ok := bytes.CutPrefix(line, []byte("device ")); ok {
		a.serveDevice(c, body)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	var answer any
	switch what := strings.TrimSpace(string(line)); what {
	case "stats":
		st, err := a.s.Stats(ctx)
		if err != nil {
			return
		}
		answer = st
	case "log":
		answer = a.s.logTail.tail()
	case "options":
		answer = a.s.options.shown()
	default:
		answer = map[string]string{"error": "asked for " + what + ", must be stats, log, options or device"}
	}
	_ = json.NewEncoder(c).Encode(answer)
}

// serveDevice carries a request out, for as long as that takes and the client waits.
func (a *admin) serveDevice(c net.Conn, body []byte) {
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	var r DeviceRequest
	var out DeviceAnswer
	err := json.Unmarshal(body, &r)
	if err != nil {
		err = skep.Invalidf("device", "request", string(body), "JSON of a DeviceRequest")
	} else if err = c.SetDeadline(time.Time{}); err == nil {
		go0(&a.done, func() { // ends when the client hangs up, or the connection is closed
			_, _ = c.Read(make([]byte, 1))
			cancel()
		})
		out.Moved, err = a.s.changeDevice(ctx, &r)
	}
	if err != nil {
		out.Kind, out.Error = skep.KindOf(err), err.Error()
	}
	if c.SetDeadline(time.Now().Add(adminTimeout)) == nil {
		_ = json.NewEncoder(c).Encode(out)
	}
	c.Close()
}

func (s *Store) changeDevice(ctx context.Context, r *DeviceRequest) (p Progress, err error) {
	o := MoveOptions{Rate: r.Rate, DryRun: r.DryRun, Force: r.Force}
	switch r.Action {
	case "add":
		return p, s.AddDevice(ctx, NewDevice{Path: r.Path, Bytes: r.Bytes})
	case "drain":
		return s.DrainDevice(ctx, r.Device, o)
	case "remove":
		return s.RemoveDevice(ctx, r.Device, o)
	case "rebalance":
		return s.Rebalance(ctx, o)
	}
	return p, skep.Invalidf("device", "action", r.Action, "add, drain, remove or rebalance")
}

// shown is the options that can be shown: all but functions and the like.
func (o *Options) shown() map[string]any {
	out := map[string]any{}
	v := reflect.ValueOf(*o)
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		if !f.IsExported() {
			continue
		}
		switch value.Kind() {
		case reflect.Func, reflect.Interface, reflect.Pointer, reflect.Struct:
			continue
		}
		if d, ok := value.Interface().(time.Duration); ok {
			out[f.Name] = d.String()
			continue
		}
		out[f.Name] = value.Interface()
	}
	out["Backend"] = o.Device.Backend
	return out
}

func (a *admin) close() {
	if a == nil {
		return
	}
	a.l.Close() // removes the socket
	a.cancel()
	a.done.Wait()
}

// AskAdmin asks the store that is open in dir, in another process or this one, for
// "stats", "log" or "options", and decodes the answer. Missing when none is open with Options.Admin.
func AskAdmin(ctx context.Context, dir, what string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	return askAdmin(ctx, dir, what, into)
}

// AskDevice has the store that is open in dir, in another process or this one, change its
// devices. It returns when that is done; when ctx ends before, the store gives it up.
func AskDevice(ctx context.Context, dir string, r DeviceRequest) (Progress, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return Progress{}, err
	}
	var out DeviceAnswer
	if err := askAdmin(ctx, dir, "device "+string(line), &out); err != nil {
		return Progress{}, err
	}
	if out.Error != "" {
		return out.Moved, &skep.Error{Op: r.Action + " device", Kind: out.Kind, Err: errors.New(out.Error)}
	}
	return out.Moved, nil
}

func askAdmin(ctx context.Context, dir, line string, into any) error {
	path := filepath.Join(dir, AdminSocket)
	fail := func(kind skep.Kind, err error) error {
		return &skep.Error{Op: "ask store", Kind: kind, Field: "admin socket", Value: path, Limit: "of a store that is open with it", Err: err}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return fail(skep.Missing, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		return fail(skep.Other, err)
	}
	if err := json.NewDecoder(c).Decode(into); err != nil {
		if ctx.Err() != nil {
			return fail(skep.Deadline, ctx.Err())
		}
		return fail(skep.Other, err)
	}
	return nil
}
