package command_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
)

// Each cause ends a command with the code of its kind, however deep it lies.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	of := func(k skep.Kind) error { return &skep.Error{Op: "test", Kind: k} }
	cause := func(k skep.Kind, err error) error { return &skep.Error{Op: "test", Kind: k, Err: err} }
	for code, list := range map[int][]error{
		command.OK: {nil},
		command.Failed: {of(skep.Other), of(skep.Full), of(skep.Quota), of(skep.Damaged), of(skep.Failed),
			of(skep.DeviceFailed), of(skep.ReadOnly), of(skep.Unsupported),
			cause(skep.Damaged, os.ErrNotExist), cause(skep.DeviceFailed, syscall.EIO), syscall.ENOSPC,
			cause(skep.NotReleased, errors.Join(of(skep.Damaged), of(skep.NotReleased))),
			cause(skep.NotReleased, of(skep.Full))},
		command.Input: {of(skep.Invalid), of(skep.Foreign), of(skep.Conflict), of(skep.Version), os.ErrNotExist,
			cause(skep.Invalid, os.ErrPermission),
			command.Usage(&cobra.Command{Use: "skep"}, errors.New("unknown"), "")},
		command.NotFound: {of(skep.NotFound), of(skep.Missing), cause(skep.NotFound, os.ErrNotExist),
			cause(skep.Missing, of(skep.Foreign)), cause(skep.NotReleased, of(skep.NotFound))},
		command.TryAgain: {of(skep.Locked), of(skep.Unavailable), of(skep.Overloaded), of(skep.Deadline),
			of(skep.NoMemory), of(skep.NotReleased), context.DeadlineExceeded,
			of(skep.StaleMap), of(skep.Behind), command.Passing(of(skep.Invalid)), command.Passing(of(skep.Missing)),
			cause(skep.Unavailable, syscall.ECONNREFUSED), cause(skep.Unavailable, os.ErrNotExist),
			cause(skep.NotReleased, context.DeadlineExceeded),
			cause(skep.NotReleased, errors.Join(errors.New("plain"), of(skep.NotReleased)))},
		command.Denied: {of(skep.Denied), os.ErrPermission, cause(skep.Denied, os.ErrPermission)},
		command.Interrupted: {context.Canceled, cause(skep.Deadline, context.Canceled),
			errors.Join(of(skep.Invalid), context.Canceled)},
	} {
		for _, err := range list {
			assert.Equal(t, code, command.CodeOf(err), "%v", err)
			if err != nil {
				assert.Equal(t, code, command.CodeOf(fmt.Errorf("of another: %w", command.WithNext(err, "do this"))), "%v", err)
			}
		}
	}
}
