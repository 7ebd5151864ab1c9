package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"strings"

	"github.com/skepkv/skep"
)

// Do has the store that is open in dir do what a request says, and returns when that is done; when
// ctx ends before, the store gives it up.
func Do[R any](ctx context.Context, dir, what string, request any) (R, error) {
	var out Answer[R]
	line, err := json.Marshal(request)
	if err != nil {
		return out.Result, err
	}
	if err := Ask(ctx, dir, what+" "+string(line), &out); err != nil {
		return out.Result, err
	}
	if out.Error != "" {
		return out.Result, Told(what, out.Kind, out.Error)
	}
	return out.Result, nil
}

// Told is an error that another process told of, which said what it was about to begin with.
func Told(op string, kind skep.Kind, text string) error {
	// What it says that it was about is better than what it was asked.
	if said, rest, ok := strings.Cut(strings.TrimPrefix(text, "skep: "), ": "+kind.Error()+": "); ok && !strings.Contains(said, ":") {
		op, text = said, rest
	}
	return &skep.Error{Op: op, Kind: kind, Err: errors.New(text)}
}

// Ask sends a line to the store that is open in dir, and decodes the answer. Missing when none is open
// with a socket; Overloaded when as many ask it as may.
func Ask(ctx context.Context, dir, line string, into any) error {
	path := filepath.Join(dir, Socket)
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
	_, werr := c.Write([]byte(line + "\n")) // a server that refuses has answered, and may have hung up
	var answer json.RawMessage
	if err := json.NewDecoder(c).Decode(&answer); err != nil {
		if ctx.Err() != nil {
			return fail(skep.Deadline, ctx.Err())
		}
		return fail(skep.Other, cmp.Or(werr, err))
	}
	var no refusal
	if json.Unmarshal(answer, &no) == nil && no.Busy > 0 {
		return &skep.Error{Op: "ask store", Kind: skep.Overloaded, Field: "connections to " + path, Value: no.Busy,
			Limit: "fewer; ask again when one of them is over"}
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fail(skep.Other, err)
	}
	return nil
}
