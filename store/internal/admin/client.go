package admin

import (
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
	e := &skep.Error{Op: op, Kind: kind}
	e.Err = errors.New(strings.TrimPrefix(text, e.Error()+": "))
	return e
}

// Ask sends a line to the store that is open in dir, and decodes the answer. Missing when none is open
// with a socket.
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
