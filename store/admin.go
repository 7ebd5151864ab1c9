package store

import (
	"context"
	"reflect"
	"time"

	"github.com/skepkv/skep/store/internal/admin"
)

// AdminSocket is the name, in a store's directory, of the Unix socket through which other
// processes of the same user see it at work (Options.Admin).
const AdminSocket = admin.Socket

// MaxSocketPath is the longest path that the system takes for a Unix socket, in bytes.
const MaxSocketPath = admin.MaxPath

// What can be asked for on the socket. Of these device, namespace, scrub and compact change something;
// they take as long as it takes, and a client that hangs up ends them.
//
//	stats     skep.Stats
//	log       the last lines of the store's log, []string
//	options   the options it was opened with, by name
//	device    followed by a DeviceRequest: a DeviceAnswer
//	namespace followed by a NamespaceRequest: a WorkAnswer with a NamespaceDeletion
//	scrub     followed by a WorkRequest: a WorkAnswer with a ScrubReport
//	compact   followed by a WorkRequest: a WorkAnswer with a CompactResult

// What asks for a change of devices, and what came of it.
type (
	DeviceRequest = admin.DeviceRequest
	DeviceAnswer  = admin.DeviceAnswer
)

// startAdmin serves the socket, if there is to be one: nil where the directory's path is too long for it. A store is
// of use without.
func startAdmin(s *Store) (*admin.Server, error) {
	if dir := s.options.Dir; !admin.Fits(dir) {
		s.log.Warn("the store has no admin socket: its path is too long for one, so that skep top and inspect do not see it open",
			"dir", dir, "bytes", len(dir)+1+len(AdminSocket), "at_most", MaxSocketPath)
		return nil, nil
	}
	// The store's lock is ours: a socket that is there is a dead process's.
	return admin.Listen(s.options.Dir, admin.Requests{
		Views: map[string]func(ctx context.Context) (any, error){
			"stats":   func(ctx context.Context) (any, error) { return s.Stats(ctx) },
			"log":     func(context.Context) (any, error) { return s.logTail.Lines(), nil },
			"options": func(context.Context) (any, error) { return s.options.shown(), nil },
		},
		Calls: map[string]func(ctx context.Context, request []byte) any{
			"device":    admin.DeviceCall(s),
			"namespace": admin.Call(s.DeleteNamed),
			"scrub": admin.Call(func(ctx context.Context, r WorkRequest) (ScrubReport, error) {
				return s.Scrub(ctx, ScrubOptions{Rate: r.Rate, DryRun: r.DryRun})
			}),
			"compact": admin.Call(func(ctx context.Context, r WorkRequest) (CompactResult, error) {
				return s.Compact(ctx, MoveOptions{Rate: r.Rate, DryRun: r.DryRun})
			}),
		},
		Known: "stats, log, options, device, namespace, scrub or compact",
	})
}

// WorkRequest asks an open store to scrub or to compact itself.
type WorkRequest struct {
	Rate   int64 `json:"rate,omitempty"` // bytes a second, as ScrubOptions and MoveOptions have it
	DryRun bool  `json:"dry_run,omitempty"`
}

// WorkAnswer is what came of it. Result is there with an error, too, as far as it went.
type WorkAnswer[R any] = admin.Answer[R]

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

// AskAdmin asks the store that is open in dir, in another process or this one, for
// "stats", "log" or "options", and decodes the answer. Missing when none is open with Options.Admin.
func AskAdmin(ctx context.Context, dir, what string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, admin.Timeout)
	defer cancel()
	return admin.Ask(ctx, dir, what, into)
}

// AskDevice has the store that is open in dir, in another process or this one, change its
// devices. It returns when that is done; when ctx ends before, the store gives it up.
func AskDevice(ctx context.Context, dir string, r DeviceRequest) (Progress, error) {
	return admin.DoDevice(ctx, dir, r)
}

// AskScrub has the store that is open in dir, in another process or this one, scrub itself. It returns when that is
// done; when ctx ends before, the store gives it up.
func AskScrub(ctx context.Context, dir string, r WorkRequest) (ScrubReport, error) {
	return admin.Do[ScrubReport](ctx, dir, "scrub", r)
}

// AskCompact is AskScrub for Compact.
func AskCompact(ctx context.Context, dir string, r WorkRequest) (CompactResult, error) {
	return admin.Do[CompactResult](ctx, dir, "compact", r)
}
