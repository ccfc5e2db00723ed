#include "session/text/chat.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "session/text/utf8.h"

namespace zoexport {
namespace {

const char* const kThoughtBegin = "<think>";
const char* const kThoughtEnd = "</think>";

// Without a locale, which hosts set as they like.
std::string date_text(const std::string& format, std::time_t now) {
  static constexpr std::array kDays = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
  static constexpr std::array kMonths = {"January", "February", "March",     "April",   "May",      "June",
                                         "July",    "August",   "September", "October", "November", "December"};
  std::tm local = {};
  ::localtime_r(&now, &local);
  const auto number = [](int width, int value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%0*d", width, value);
    return std::string(text);
  };
  const std::string day = kDays[static_cast<size_t>(local.tm_wday)];
  const std::string month = kMonths[static_cast<size_t>(local.tm_mon)];
  std::string text;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%' || at + 1 == format.size()) {
      text += format[at];
      continue;
    }
    switch (format[++at]) {
      case 'a':
        text += day.substr(0, 3);
        break;
      case 'A':
        text += day;
        break;
      case 'b':
        text += month.substr(0, 3);
        break;
      case 'B':
        text += month;
        break;
      case 'd':
        text += number(2, local.tm_mday);
        break;
      case 'H':
        text += number(2, local.tm_hour);
        break;
      case 'j':
        text += number(3, local.tm_yday + 1);
        break;
      case 'm':
        text += number(2, local.tm_mon + 1);
        break;
      case 'M':
        text += number(2, local.tm_min);
        break;
      case 'S':
        text += number(2, local.tm_sec);
        break;
      case 'y':
        text += number(2, local.tm_year % 100);
        break;
      case 'Y':
        text += number(1, local.tm_year + 1900);
        break;
      default:
        text += format[at];
    }
  }
  return text;
}

// Without line breaks at its begin, and at its end too if `both`.
std::string without_breaks(const std::string& text, bool both) {
  const size_t begin = text.find_first_not_of('\n');
  if (begin == std::string::npos) {
    return "";
  }
  return text.substr(begin, both ? text.find_last_not_of('\n') + 1 - begin : std::string::npos);
}

// What stands between the last begin of a thought before its first end, and that.
std::string thought_of(const std::string& content) {
  const std::string before = content.substr(0, content.find(kThoughtEnd));
  const size_t begin = before.rfind(kThoughtBegin);
  return begin == std::string::npos ? before : before.substr(begin + std::strlen(kThoughtBegin));
}

std::string thoughtful(const std::string& thought, const std::string& answer) {
  return std::string(kThoughtBegin) + "\n" + without_breaks(thought, true) + "\n" + kThoughtEnd + "\n\n" +
         without_breaks(answer, false);
}

std::string written(const Message& message, ContentForm form) {
  const std::string& content = message.content;
  if (form == ContentForm::kStripped) {
    return stripped(content);
  }
  if (message.reasoning) {
    return form == ContentForm::kThought ? thoughtful(*message.reasoning, content) : content;
  }
  if (form == ContentForm::kWhole) {
    return content;
  }
  const size_t end = content.rfind(kThoughtEnd);
  const bool thought = end != std::string::npos;
  const std::string answer = thought ? content.substr(end + std::strlen(kThoughtEnd)) : content;
  if (form == ContentForm::kAnswer) {
    return thought ? without_breaks(answer, false) : content;
  }
  return thoughtful(thought ? thought_of(content) : "", answer);
}

}  // namespace

std::string stripped(const std::string& text) {
  size_t begin = text.size();
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t character = next_character(text, at);
    if (!is_white_space(character) && (character < 0x1C || character > 0x1F)) {
      begin = std::min(begin, here);
      end = at;
    }
  }
  return begin < end ? text.substr(begin, end - begin) : "";
}

Result<std::string> chat_text(const TextSpec& text, const std::vector<Message>& messages, bool reply, std::time_t now) {
  if (!text.chat) {
    return Failure{ZO_BUNDLE_ERROR, "chat",
                   text.no_chat.empty() ? "a bundle without the form of its model's conversations" : text.no_chat,
                   "a model whose tokenizer has a chat template that can be taken apart (docs/text.md)",
                   "Give plain prompts, or compile the chat version of the model with this version."};
  }
  if (messages.empty()) {
    return Failure{ZO_DATA_ERROR, "messages", "none", "at least one", "Give the user's message."};
  }
  const ChatForm& chat = *text.chat;
  std::string result;
  std::string before = "begin";
  const auto write = [&](const std::string& piece) {
    for (size_t at = 0; at <= piece.size();) {
      const size_t date = piece.find(kDatePlace, at);
      result.append(piece, at, date - at);
      if (date == std::string::npos) {
        break;
      }
      result += date_text(chat.date, now);
      at = date + std::strlen(kDatePlace);
    }
  };
  const auto go_on = [&](const std::string& next, const std::string& where) -> Status {
    const auto found = chat.between.find(before);
    const auto between =
        found == chat.between.end() ? std::map<std::string, std::string>::const_iterator() : found->second.find(next);
    if (found == chat.between.end() || between == found->second.end()) {
      std::string expected;
      if (found != chat.between.end()) {
        for (const auto& one : found->second) {
          expected += (expected.empty() ? "" : " or ") + one.first;
        }
      }
      return Failure{ZO_DATA_ERROR, where, "'" + next + "' after '" + before + "'",
                     expected.empty() ? "other roles before it" : expected,
                     "Correct the roles of the messages: the chat template of the bundle's model writes no such order "
                     "(docs/text.md)."};
    }
    write(between->second);
    before = next;
    return {};
  };
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const std::string where = "message " + std::to_string(i + 1);
    if (valid_utf8(message.content) != message.content.size()) {
      return Failure{ZO_DATA_ERROR, where, "content that is no UTF-8", "UTF-8", "Give the text as UTF-8."};
    }
    if (message.reasoning && !chat.reasoning) {
      return Failure{ZO_DATA_ERROR, where, "the key 'reasoning_content'", "keys that the model's chat template writes",
                     "Write what it says into the content, or remove the key."};
    }
    if (chat.answer && !reply && i + 1 == messages.size() && message.role == "assistant") {
      if (const auto text_before = chat.answer->before.find(before); text_before != chat.answer->before.end()) {
        write(text_before->second);
        result += written(message, chat.answer->content);
        write(chat.answer->end);
        return result;
      }
    }
    ZO_TRY(go_on(message.role, where));
    const auto form = chat.content.find(message.role);
    result += written(message, form == chat.content.end() ? ContentForm::kWhole : form->second);
  }
  ZO_TRY(go_on(reply ? "reply" : "end", "the end of the conversation"));
  return result;
}

}  // namespace zoexport
