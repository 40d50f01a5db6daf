// The search takes "-" before a word for "without it": someone who types --park-after means the option.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...others) {
  if (typeof message?.data === "string") {
    message = { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") };
  }
  return post.call(this, message, ...others);
};
