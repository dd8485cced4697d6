// Clients of Apache's Go library: `send` or `consume`, then name server, access key, secret key,
// topic and group. Each result is a line of JSON. `send` sends the lines of standard input, in
// every way that a producer has; `consume` prints bodies until standard input ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const answerWithin = 20 * time.Second

var printing sync.Mutex

func say(result map[string]any) {
	printing.Lock()
	defer printing.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		panic(err)
	}
}

func main() {
	rlog.SetLogLevel("error")
	what, nameServer, group := os.Args[1], primitive.NamesrvAddr{os.Args[2]}, os.Args[6]
	key := primitive.Credentials{AccessKey: os.Args[3], SecretKey: os.Args[4]}
	var err error
	if what == "send" {
		err = send(nameServer, key, os.Args[5], group)
	} else {
		err = consume(nameServer, key, os.Args[5], group)
	}
	if err != nil {
		say(map[string]any{"error": err.Error()})
	}
}

func send(nameServer primitive.NamesrvAddr, key primitive.Credentials, topic, group string) error {
	sender, err := rocketmq.NewProducer(
		producer.WithNameServer(nameServer), producer.WithCredentials(key),
		producer.WithGroupName(group), producer.WithRetry(0), producer.WithSendMsgTimeout(answerWithin))
	if err != nil {
		return err
	}
	if err = sender.Start(); err != nil {
		return err
	}
	defer func() { _ = sender.Shutdown() }()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		body := lines.Text()
		ways := map[string]func(*primitive.Message) error{
			"sync": func(message *primitive.Message) error {
				_, err := sender.SendSync(context.Background(), message)
				return err
			},
			"batch": func(message *primitive.Message) error {
				_, err := sender.SendSync(context.Background(), message, primitive.NewMessage(topic, []byte(body+" batch, second")))
				return err
			},
			"one-way": func(message *primitive.Message) error {
				return sender.SendOneWay(context.Background(), message)
			},
			"async": func(message *primitive.Message) error {
				answered := make(chan error, 1)
				err := sender.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
					answered <- err
				}, message)
				if err != nil {
					return err
				}
				return <-answered
			},
		}
		for way, sendIt := range ways {
			result := map[string]any{"way": way}
			if err := sendIt(primitive.NewMessage(topic, []byte(body+" "+way))); err != nil {
				result["error"] = err.Error()
			}
			say(result)
		}
	}
	return lines.Err()
}

func consume(nameServer primitive.NamesrvAddr, key primitive.Credentials, topic, group string) error {
	receiver, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(nameServer), consumer.WithCredentials(key),
		consumer.WithGroupName(group), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return err
	}
	err = receiver.Subscribe(topic, consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				say(map[string]any{"body": string(message.Body)})
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return err
	}
	if err = receiver.Start(); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
