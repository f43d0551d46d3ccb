package broker

import (
	"context"
	"time"
)

// closeBroker closes a broker, with a minute for it.
func closeBroker(b *Broker) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return b.Close(ctx)
}
