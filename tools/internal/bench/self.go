package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/skepkv/skep/tools/internal/self"
)

// runSelf runs a hidden command of skep-bench and reads its result.
func runSelf(ctx context.Context, program []string, into any, args ...string) error {
	cmd, err := self.Command(ctx, program, append(args, "--json")...)
	if err != nil {
		return err
	}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("bench %s: %w: %s", args[0], err, firstLine(stderr.String()))
	}
	return json.Unmarshal(out.Bytes(), into)
}
