package admin

import (
	"context"
	"encoding/json"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/report"
)

// DeviceRequest asks an open store to change its devices.
type DeviceRequest struct {
	Action string `json:"action"`           // add, find, drain, keep, remove, replace or rebalance
	Device string `json:"device,omitempty"` // to be found, drained, kept, removed or replaced, as DrainDevice has it
	Path   string `json:"path,omitempty"`   // to be added, or put in the place of Device
	Bytes  int64  `json:"bytes,omitempty"`  // of a file that is added
	Rate   int64  `json:"rate,omitempty"`   // bytes a second to move; 0: as the drives are idle
	DryRun bool   `json:"dry_run,omitempty"`
	Force  bool   `json:"force,omitempty"` // of remove and replace

	Smaller bool `json:"smaller,omitempty"` // of add and replace, as NewDevice has it
}

// DeviceAnswer is what came of it.
type DeviceAnswer struct {
	Moved report.Progress `json:"moved"`
	Kind  skep.Kind       `json:"kind"` // of the error
	Error string          `json:"error,omitempty"`
}

// Devices is a store whose devices change: see the methods of store.Store.
type Devices interface {
	AddDevice(ctx context.Context, a report.NewDevice) error
	FindDevice(name string) error
	DrainDevice(ctx context.Context, name string, o report.MoveOptions) (report.Progress, error)
	KeepDevice(ctx context.Context, name string) error
	RemoveDevice(ctx context.Context, name string, o report.MoveOptions) (report.Progress, error)
	ReplaceDevice(ctx context.Context, name string, a report.NewDevice, o report.MoveOptions) (report.Progress, error)
	Rebalance(ctx context.Context, o report.MoveOptions) (report.Progress, error)
}

// DeviceCall makes a call of changes of d: a DeviceRequest's answer is a DeviceAnswer.
func DeviceCall(d Devices) func(ctx context.Context, request []byte) any {
	return func(ctx context.Context, request []byte) any {
		var r DeviceRequest
		var out DeviceAnswer
		err := Decode(request, &r)
		if err == nil {
			out.Moved, err = change(ctx, d, &r)
		}
		out.Kind, out.Error = Tell(err)
		return out
	}
}

func change(ctx context.Context, d Devices, r *DeviceRequest) (p report.Progress, err error) {
	o := report.MoveOptions{Rate: r.Rate, DryRun: r.DryRun, Force: r.Force}
	a := report.NewDevice{Path: r.Path, Bytes: r.Bytes, Smaller: r.Smaller}
	switch r.Action {
	case "add":
		return p, d.AddDevice(ctx, a)
	case "find":
		return p, d.FindDevice(r.Device)
	case "drain":
		return d.DrainDevice(ctx, r.Device, o)
	case "keep":
		return p, d.KeepDevice(ctx, r.Device)
	case "remove":
		return d.RemoveDevice(ctx, r.Device, o)
	case "replace":
		return d.ReplaceDevice(ctx, r.Device, a, o)
	case "rebalance":
		return d.Rebalance(ctx, o)
	}
	return p, skep.Invalidf("device", "action", r.Action, "add, find, drain, keep, remove, replace or rebalance")
}

// DoDevice has the store that is open in dir change its devices.
func DoDevice(ctx context.Context, dir string, r DeviceRequest) (report.Progress, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return report.Progress{}, err
	}
	var out DeviceAnswer
	if err := Ask(ctx, dir, "device "+string(line), &out); err != nil {
		return report.Progress{}, err
	}
	if out.Error != "" {
		return out.Moved, Told(r.Action+" device", out.Kind, out.Error)
	}
	return out.Moved, nil
}
