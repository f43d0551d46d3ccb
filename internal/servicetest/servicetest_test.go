package servicetest

import (
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/model"
)

func wallClock() int64 { return time.Now().UnixMilli() }

func TestModel(t *testing.T) {
	Run(t, func(*testing.T) felix.Service { return model.New(wallClock) })
}

// TestModelInRealTime hides that the model's clock can be set.
func TestModelInRealTime(t *testing.T) {
	Run(t, func(*testing.T) felix.Service {
		return struct{ felix.Service }{model.New(wallClock)}
	})
}
